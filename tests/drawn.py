"""What the tests of all contracts' generated sequences share."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from everyrank import World
from everyrank.model.ledger import matches
from everyrank.suites import options
from everyrank.suites.engine.case import cases
from everyrank.suites.engine.contract import contract
from everyrank.suites.engine.subject import Subject
from everyrank.suites.moves import Player
from everyrank.suites.moves.data import code, encode
from everyrank.suites.moves.printing import printed
from everyrank.suites.moves.script import Script
from everyrank.suites.moves.search import Found, Search
from everyrank.suites.options import SearchPlan

hypothesis = pytest.mark.skipif(not options.installed(), reason="needs Hypothesis")


class _Noting(Search):
    """A search that carries nothing out."""

    def play(self, draw: Script) -> str:
        self.seen = [*getattr(self, "seen", ()), draw]
        return ""


def drawn(subject: Subject, world: World, plan: SearchPlan, features: frozenset[str] | None = None) -> list[Any]:
    """Return what is drawn. Nothing of it is carried out."""
    noting = _Noting(subject, everything(subject) if features is None else features, world)
    noting.run(plan)
    return noting.seen


def everything(subject: Subject) -> frozenset[str]:
    return frozenset(_player(subject).features)


def _player(subject: Subject) -> type[Player]:
    found: type[Player] = contract(subject.contract).part("player")
    return found


def check_journey(subject: Subject, draws: list[Any]) -> None:
    """Check that draws stay the same as JSON and as the code of a test."""
    assert draws
    player = _player(subject)
    names = vars(sys.modules[player.kinds[0].__module__])
    for draw in draws:
        assert player.read(encode(draw)) == draw
        assert eval(code(draw), names) == draw


def printed_test(subject: Subject, draw: Any) -> Callable[..., None]:
    """Return the function of the test that is printed for this draw."""
    names: dict[str, Any] = {}
    exec(printed(subject, draw), names)
    found: Callable[..., None] = names["test_found"]
    return found


def search(subject: Subject, world: World, draws: int, features: frozenset[str] | None = None, **plan: Any) -> Found:
    """Search on all ranks."""
    return Search(subject, everything(subject) if features is None else features, world).run(
        SearchPlan(draws, **plan)
    )


def left_out(subject: Subject) -> frozenset[str]:
    """Return the features that are not drawn for this subject, whose ledger lies in its contract's folder."""
    player = _player(subject)
    return player.left_out(cases(subject, Path(inspect.getfile(player)).parent))


def features_without_cases(subject: Subject) -> list[str]:
    """Return the features whose pattern matches no case, so that no ledger could ever speak of them."""
    known = [case.short_id for case in cases(replace(subject, known=None))]
    return [
        feature
        for feature, pattern in _player(subject).features.items()
        if not any(matches(pattern, short_id) for short_id in known)
    ]
