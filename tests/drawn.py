"""What tests know of a contract's scripts, drawn and hand-written, and how they search."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from everyrank import World
from everyrank.model.ledger import matches
from everyrank.suites.engine.case import cases
from everyrank.suites.engine.contract import contract
from everyrank.suites.engine.subject import Subject
from everyrank.suites.moves import Player
from everyrank.suites.moves.printing import printed
from everyrank.suites.moves.script import Script
from everyrank.suites.moves.search import Found, Search
from everyrank.suites.options import SearchPlan


@dataclass(frozen=True)
class Row:
    """A hand-written script, which the exemplars pass."""

    script: Script
    build: Any = None
    """Another implementation, which is tried as well."""
    deviation: str = ""
    """What its deviation matches; it passes, too, if this is empty."""
    smoke: bool = False
    declares: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Scripts:
    """What is known of the scripts of a contract."""

    exemplars: tuple[Subject, ...]
    draws: int
    """How many draws the exemplars are tried with."""
    rows: Mapping[str, Row]
    ledgers: tuple[tuple[Subject, set[str], set[str]], ...]
    """For subjects, features of which their ledger speaks, and features of which it does not."""
    never: tuple[tuple[frozenset[str] | Subject, Callable[[Script], object]], ...]
    """For features, or those of a subject's lacks: what is true of some scripts, and of none without them."""

    @property
    def subject(self) -> Subject:
        return self.exemplars[0]

    def variant(self, row: Row) -> Subject:
        """Return a subject with the implementation of this row."""
        declares = self.subject.declares | row.declares
        return replace(self.subject, name=row.build.__name__, build=row.build, declares=declares)


class _Noting(Search):
    """A search that carries nothing out."""

    def play(self, draw: Script) -> str:
        self.seen = [*getattr(self, "seen", ()), draw]
        return ""


def drawn(subject: Subject, world: World, plan: SearchPlan, features: frozenset[str] | None = None) -> list[Script]:
    """Return what is drawn. Nothing of it is carried out."""
    noting = _Noting(subject, everything(subject) if features is None else features, world)
    noting.run(plan)
    return noting.seen


def everything(subject: Subject) -> frozenset[str]:
    return frozenset(player_of(subject).features)


def player_of(subject: Subject) -> type[Player]:
    found: type[Player] = contract(subject.contract).part("player")
    return found


def marks(subject: Subject, size: int, **more: Any) -> Iterator[pytest.MarkDecorator]:
    """Yield the marks of a test that plays scripts of this size; the fixture `meeting` brings up what they need."""
    chosen = contract(subject.contract)
    fixtures = player_of(subject).fixtures_for(size)
    yield pytest.mark.world(size, **more)
    yield pytest.mark.rank_fixtures(*(chosen.fixtures if fixtures is None else fixtures))
    yield from chosen.marks


@pytest.fixture
def meeting(request: pytest.FixtureRequest) -> Any:
    """Return the group or the agent by which the ranks of a script meet."""
    names = [name for mark in request.node.iter_markers("rank_fixtures") for name in mark.args]
    return [request.getfixturevalue(name) for name in names][-1:]


def printed_test(subject: Subject, draw: Any) -> Callable[..., None]:
    """Return the function of the test that is printed for this draw."""
    names: dict[str, Any] = {}
    exec(printed(subject, draw), names)
    found: Callable[..., None] = names["test_found"]
    return found


def search(subject: Subject, world: World, draws: int, features: frozenset[str] | None = None, **plan: Any) -> Found:
    """Search on all ranks."""
    chosen = everything(subject) if features is None else features
    return Search(subject, chosen, world).run(SearchPlan(draws, **plan))


def left_out(subject: Subject) -> frozenset[str]:
    """Return the features that are not drawn for this subject, whose ledger lies in its contract's folder."""
    player = player_of(subject)
    return player.left_out(cases(subject, Path(inspect.getfile(player)).parent))


def features_without_cases(subject: Subject) -> list[str]:
    """Return the features whose pattern matches no case, so that no ledger could ever speak of them."""
    known = [case.short_id for case in cases(replace(subject, known=None))]
    return [
        feature
        for feature, pattern in player_of(subject).features.items()
        if not any(matches(pattern, short_id) for short_id in known)
    ]
