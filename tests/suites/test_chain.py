"""Chains of two flows of state: which are in a script, which are in no crossing, and that draws look for those."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from everyrank.suites.engine.contract import contract, contracts
from everyrank.suites.moves.chain import chains_of, unseen
from everyrank.suites.moves.crossing import Crossing, Event
from everyrank.suites.moves.file import stored
from everyrank.suites.moves.flow import Flow
from everyrank.suites.moves.move import move, moves_of
from everyrank.suites.moves.player import Player
from everyrank.suites.moves.script import Script
from everyrank.suites.trainer.player import TrainerPlayer


@dataclass(frozen=True)
class Mill:
    """A model of a made-up contract."""

    size: int


class _Mill(Player):
    """Corn is poured, and ground to flour; flour is baked."""

    kinds = (Mill,)

    @move("mill", writes=("corn",))
    def pour(self) -> None:
        """Pour corn."""

    @move("mill", reads=("corn",), writes=("flour",))
    def grind(self) -> None:
        """Grind it."""

    @move("mill", reads=("flour",))
    def bake(self) -> None:
        """Bake it."""


_POUR, _GRIND, _BAKE = ("pour", 0), ("grind", 0), ("bake", 0)
_CORN, _FLOUR = Flow("corn", _POUR, None, "grind"), Flow("flour", _GRIND, None, "bake")


@pytest.mark.parametrize(
    ("events", "found"),
    [
        ((_POUR, _GRIND, _BAKE), True),
        ((_POUR, _GRIND, _POUR, _BAKE), True),
        ((_GRIND, _POUR, _BAKE), False),  # it was ground before there was corn
        ((_POUR, _GRIND, _GRIND, _BAKE), True),
        ((_POUR, _BAKE, _GRIND), False),
    ],
)
def test_what_reads_the_first_flow_changes_the_second(events: tuple[Event, ...], found: bool) -> None:
    assert ((_CORN, _FLOUR) in chains_of(_Mill, [Crossing({}, events)])) == found


def test_what_is_looked_for_is_in_no_crossing() -> None:
    assert unseen(_Mill) == [], "the only chain is in a crossing"
    known = chains_of(TrainerPlayer, [crossing for crossing, _ in stored(TrainerPlayer)])
    assert all(chains_of(TrainerPlayer, [Crossing({}, events)]) - known for events in unseen(TrainerPlayer))


@pytest.mark.parametrize("name", [name for name in contracts() if contract(name).player is not None])
def test_what_is_looked_for_are_moves_of_the_player(name: str) -> None:
    """What was there at the start is none: a state that is saved then is looked for by its save."""
    player = contract(name).part("player")
    moves = moves_of(player)
    assert unseen(player)
    assert all(kind < len(moves[each].kinds_up_to()) for events in unseen(player) for each, kind in events)


def test_draws_add_chains_that_no_crossing_has(monkeypatch: pytest.MonkeyPatch) -> None:
    hypothesis = pytest.importorskip("hypothesis")
    from everyrank.suites.moves import drawing

    chain = (
        _BAKE,
        _POUR,
        _BAKE,
        _GRIND,
        _BAKE,
        _POUR,
        _POUR,
        _BAKE,
    )  # eight of three moves: by chance, it is not drawn
    monkeypatch.setattr(drawing, "unseen", lambda player: [chain])
    ends = []

    @hypothesis.seed(1)
    @hypothesis.settings(
        max_examples=60,
        phases=[hypothesis.Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=[*hypothesis.HealthCheck],
    )
    @hypothesis.given(drawing.scripts_of(_Mill)(2, frozenset()))
    def draw(script: Script) -> None:
        ends.append(tuple(call.move for call in script.moves[-8:]))

    draw()
    share = ends.count(tuple(name for name, _ in chain)) / len(ends)
    assert 0.1 < share < 0.9
