"""The law ``crossings`` of a contract that has a player: one case for each script."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from everyrank.rank.context import current_rank
from everyrank.suites.engine.contract import Contract, Law, Point, contract
from everyrank.suites.engine.subject import Subject
from everyrank.suites.errors import CROSSED, NotApplicable
from everyrank.suites.moves.crossing import Crossing, Event, text_of
from everyrank.suites.moves.file import stored
from everyrank.suites.moves.first import first_red
from everyrank.suites.moves.player import Player, play_or_raise
from everyrank.suites.moves.printing import printed
from everyrank.suites.moves.script import Script
from everyrank.suites.moves.shorten import shortest
from everyrank.suites.moves.together import Rejected

CROSSINGS = "crossings"

#: How many subjects have each crossing of the default profile once between them.
TURNS = 3

#: The time limit of a case in seconds: a script, and many shorter ones if it fails.
_TIMEOUT = 120.0


@dataclass(frozen=True, kw_only=True)
class CrossingPoint(Point):
    """A point with a script, as far as a subject without some features has it."""

    crossing: Crossing
    without: frozenset[str] = frozenset()

    def features(self, player: type[Player]) -> frozenset[str]:
        """Return the features that the subject has."""
        return frozenset(player.features) - self.without

    def script(self, player: type[Player]) -> Script:
        """Return the script. Raise NotApplicable if the subject lacks all of its moves."""
        return self.fitted(player)[0]

    def fitted(self, player: type[Player]) -> tuple[Script, tuple[Event, ...]]:
        """Return the script, and the events that the subject has of it."""
        script, events = self.crossing.fitted(player, self.features(player))
        if not script.moves:
            raise NotApplicable("the subject has none of these moves")
        return script, events


def crossed(chosen: Contract, module: str, core: Sequence[int] = ()) -> None:
    """Register the law ``crossings``, as one of a module of laws.

    ``core`` are the numbers of the crossings that rogues are tried on.
    """

    def points() -> Iterator[CrossingPoint]:
        player: Any = chosen.part("player")
        for number, (crossing, full) in enumerate(stored(player), 1):
            yield CrossingPoint(
                f"{player.label(crossing.traits)}-{number:03d}",
                crossing.traits["size"],
                core=number in core,
                fixtures=player.fixtures_for(crossing.traits["size"]),
                turns=0 if full else TURNS,
                crossing=crossing,
            )

    def check(subject: Subject, point: CrossingPoint) -> None:
        _check(subject, point)

    check.__doc__, check.__module__ = _check.__doc__, module
    law = Law(CROSSINGS, check, points, timeout=_TIMEOUT, crosses=True, fit=_fitted, explain=_explain)
    chosen.register(law)


def _check(subject: Any, point: CrossingPoint) -> None:
    """Whatever is done before, subject and reference agree after each move.

    Each pair of moves comes in a row in one of the cases, and triples in their order, on models of all kinds.
    """
    __tracebackhide__ = True
    script, events = point.fitted(_player(subject))
    try:
        play_or_raise(subject, script)
    except Rejected as error:
        raise NotApplicable(f"plain torch or the subject refuses the model: {error}") from None
    current_rank().item.user_properties.append((CROSSED, text_of(events)))


def _player(subject: Subject) -> type[Player]:
    found: type[Player] = contract(subject.contract).part("player")
    return found


def _fitted(cases: Sequence[Any]) -> Callable[[Any], Any]:
    """Return what fits a point to the subject of these cases: it is not asked for what it says that it lacks."""
    without = cases[0].contract.part("player").left_out(cases)
    return lambda point: replace(point, without=without)


def _explain(subject: Subject, point: CrossingPoint) -> str:
    """Return a short script that fails as well, as a test; or the script itself, if another case was red before."""
    player = _player(subject)
    script = point.script(player)
    first = first_red(subject.name, subject.contract_name, CROSSINGS)
    if first is None:
        found = shortest(subject, script, point.features(player))
        return f"{found.problem}\n\nas a test:\n\n{printed(subject, found.script)}"
    line = f"its cause may be that of {first}, for which the script was made short; alone, it is made short here, too"
    return f"{line}\n\nas a test:\n\n{printed(subject, script)}"
