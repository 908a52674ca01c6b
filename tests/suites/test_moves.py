"""Moves: scripts that cover pairs and triples, and what is printed of one that fails."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch
from everyrank import World
from everyrank.fixtures.rogues.trainer.crossings import ROGUES
from everyrank.suites.engine.case import cases
from everyrank.suites.engine.contract import contract
from everyrank.suites.engine.subject import Lack, Subject
from everyrank.suites.errors import Deviation
from everyrank.suites.moves.crossing import Covering, Crossing, further
from everyrank.suites.moves.file import file_of, stored, written
from everyrank.suites.moves.law import CROSSINGS
from everyrank.suites.moves.move import NEVER, Move, move, moves_of, only_if
from everyrank.suites.moves.options import set_option
from everyrank.suites.moves.player import Player, play, playing
from everyrank.suites.moves.printing import printed
from everyrank.suites.moves.script import Script, call
from everyrank.suites.moves.shorten import makes_sense, shortest
from everyrank.suites.trainer.model import Model, Param
from everyrank.suites.trainer.player import TrainerPlayer
from everyrank.suites.trainer.subjects.exemplars import DATA_PARALLEL

FEATURES = frozenset(TrainerPlayer.features)


@dataclass(frozen=True)
class Door:
    """A model of a made-up contract."""

    size: int
    colour: str = "red"


@dataclass
class Seen:
    """Whether the door is open."""

    open: bool = False


def _opening(outline: Seen) -> Iterator[str]:
    if outline.open:
        yield NEVER


def _closing(outline: Seen) -> Iterator[str]:
    if not outline.open:
        yield NEVER


class DoorPlayer(Player):
    """It is opened, closed, and knocked at."""

    kinds = (Door,)
    traits = {"size": (2,), "colour": ("red", "green", "blue")}

    @classmethod
    def outline(cls, model: Any) -> Seen:
        return Seen()

    def compare(self) -> str:
        return ""

    @move("open", needs=_opening, then=lambda outline: setattr(outline, "open", True))
    def open(self) -> None:
        """Open it."""

    @move("close", needs=_closing, then=lambda outline: setattr(outline, "open", False))
    def close(self) -> None:
        """Close it."""

    @move("knock", kinds=({}, {"times": 2}))
    def knock(self, times: int = 1) -> None:
        """Knock."""


@cache
def _doors() -> Covering:
    covering = Covering(DoorPlayer, 3)
    covering.make(40)
    return covering


def test_what_an_argument_needs_counts_if_it_is_not_its_default() -> None:
    rules = {"high": lambda outline, high, times: only_if(high > times)}
    lift = Move("lift", "lift", needs="hands", needs_of=rules, defaults={"high": 0, "times": 1})
    assert [*lift.needed(None, {})] == [*lift.needed(None, {"high": 2})] == ["hands"]
    assert [*lift.needed(None, {"high": 2, "times": 2})] == ["hands", NEVER]


class RingingPlayer(DoorPlayer):
    """There is a bell, too."""

    @move("ring", kinds=({}, {"long": True}), beside=({"times": 2}, {"long": True}))
    def ring(self, times: int = 1, long: bool = False) -> None:
        """Ring."""


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        (0, ["ring()", "ring()", "ring(long=True)", "ring(times=2)"]),
        (1, [*["ring(long=True)"] * 2, *["ring(long=True, times=2)"] * 2]),
    ],
)
def test_every_second_call_of_a_script_has_a_further_argument_in_turn(kind: int, found: list[str]) -> None:
    script = Crossing({"size": 2, "colour": "red"}, (("ring", kind),) * 4).script(RingingPlayer, frozenset())
    assert sorted(map(str, script.moves)) == found


# --- crossings ---------------------------------------------------------------------------------------


def test_each_pair_of_moves_that_can_come_in_a_row_does() -> None:
    pairs = {pair for script in _doors().scripts for pair in itertools.pairwise(script.events)}
    events = _doors().events
    impossible = {(("open", 0), ("open", 0)), (("close", 0), ("close", 0))}
    assert pairs == set(itertools.product(events, events)) - impossible


def test_each_triple_of_moves_comes_in_its_order() -> None:
    triples = {triple for script in _doors().scripts for triple in itertools.combinations(script.events, 3)}
    assert triples == set(itertools.product(_doors().events, repeat=3))


def test_each_move_is_made_on_each_kind_of_model() -> None:
    met = {(event, script.traits["colour"]) for script in _doors().scripts for event in script.events}
    assert met == set(itertools.product(_doors().events, ("red", "green", "blue")))


class LockedDoorPlayer(DoorPlayer):
    """Who has a key may lock the door, from the second layer on."""

    features = {"keys": "lock[*]"}
    features_since = {"keys": 2}
    further = ({}, {})

    @move("lock", needs="keys")
    def lock(self) -> None:
        """Lock it."""


@pytest.mark.parametrize(("layer", "found"), [(0, False), (1, False), (2, True)])
def test_a_feature_is_in_no_script_of_a_layer_before_its_own(layer: int, found: bool) -> None:
    scripts = further(LockedDoorPlayer, (), layer)
    assert ("lock" in {name for script in scripts for name, _ in script.events}) == found


def test_no_script_has_a_move_that_makes_no_sense() -> None:
    for crossing in _doors().scripts:
        assert makes_sense(DoorPlayer, crossing.script(DoorPlayer, frozenset()), frozenset())


@pytest.mark.parametrize("lacking", ["few rows", "clipping"])
def test_a_script_that_a_subject_lacks_something_of_makes_no_sense_for_it(lacking: str) -> None:
    script = Script(Model(3, params=(Param("p0", (2,)),)), (call("step", max_norm=0.05),))
    assert makes_sense(TrainerPlayer, script, FEATURES)
    assert not makes_sense(TrainerPlayer, script, FEATURES - {lacking})


def test_the_crossings_of_trainer_are_those_in_its_file() -> None:
    assert file_of(TrainerPlayer).read_text() == written(TrainerPlayer), "python -m everyrank.suites.moves"


def test_the_crossings_of_trainer_have_each_pair_in_a_row_that_makes_sense() -> None:
    scripts = [crossing for crossing, full in stored(TrainerPlayer) if not full]
    assert len(scripts) <= 210
    moves = [tuple(each.move for each in script.script(TrainerPlayer, FEATURES).moves) for script in scripts]
    pairs = {pair for script in moves for pair in itertools.pairwise(script)}
    free = [name for name, known in moves_of(TrainerPlayer).items() if not known.apart]
    free.remove("use")  # it comes once for a parameter; scripts for flows have it after loads
    free.remove("fetch")  # a position in an epoch: scripts for flows have it beside what reads it
    # What a state was saved of has all groups, unless a model says that some come later; so has what fails.
    groups_come_first = {("load", "add_group"), ("add_group", "load"), ("add_group", "miss")}
    left = set(itertools.product(free, free)) - pairs - groups_come_first
    assert left == {("save", "miss"), ("miss", "load"), ("miss", "thaw")}


def test_a_subject_is_crossed_without_what_it_lacks() -> None:
    lacks = {"state.*": Lack(NotImplementedError, "no states"), "parity.models[scalars-*]": Lack(ValueError, "no")}
    found = [case for case in cases(replace(DATA_PARALLEL, lacks=lacks)) if case.law.id == CROSSINGS]
    scripts = [case.point.script(TrainerPlayer) for case in found]  # type: ignore[attr-defined]
    assert {"save", "load", "reshard"}.isdisjoint(each.move for script in scripts for each in script.moves)
    assert all(param.shape for script in scripts for param in script.model.params)


# --- a script that fails -----------------------------------------------------------------------------


def _rogue(name: str) -> Subject:
    (rogue,) = [rogue for rogue in ROGUES if rogue.name == name]
    return replace(DATA_PARALLEL, name=name, build=rogue.build)


SCALARS = _rogue("leaves-scalars-out-of-the-norm")
LONG = Script(
    Model(2, params=(Param("p0", (3,)), Param("p1", ())), optimizer="Adam", variant="everything", layers=(2,)),
    (call("step"), call("save"), call("step", parts=2, max_norm=0.05), call("load"), call("step")),
)


@pytest.mark.world(2, timeout=120)
def test_a_script_that_fails_is_made_short(world: World, process_group: Any) -> None:
    found = shortest(SCALARS, LONG, FEATURES)
    assert found.script.moves == (call("step", max_norm=0.05),)
    assert [param.name for param in found.script.model.params] == ["p1"]
    assert found.problem.startswith("clip: move 1, step(max_norm=0.05): on rank 0: ")


@pytest.mark.world(2, timeout=120)
def test_the_test_that_is_printed_fails_as_the_script_does(world: World, process_group: Any) -> None:
    script = Script(Model(2, params=(Param("p0", ()),)), (call("step", max_norm=0.05),))
    names: dict[str, Any] = {}
    exec(printed(SCALARS, script), names)
    with pytest.raises(Deviation) as caught:
        names["test_found"](process_group)
    assert str(caught.value) == play(SCALARS, script)


@pytest.mark.world(2)
def test_what_deviates_on_one_rank_is_raised_on_all(world: World) -> None:
    with pytest.raises(Deviation, match=r"^knock: move 1, knock\(times=2\): on rank 1: it fell off$"):
        with playing(Subject("door", DOORS, build=print), Door(2)) as player:
            player.knock(2)


@pytest.mark.world(2)
def test_a_rank_that_compares_nothing_differs_from_one_that_does(world: World) -> None:
    half = replace(DOORS, player=_Silent)
    with (
        pytest.raises(Deviation, match="on rank 1: rank 1 has other values than rank 0"),
        playing(Subject("door", half, build=print), Door(2)),
    ):
        pass


class _Silent(DoorPlayer):
    """Rank 1 has nothing to show."""

    def compare(self) -> str:
        from everyrank import current_world

        return "" if current_world().rank else "7"


class _Loose(DoorPlayer):
    """The door falls off on one rank, if somebody knocks twice."""

    @move("knock")
    def knock(self, times: int = 1) -> None:
        """Knock."""
        from everyrank import current_world

        if current_world().rank == 1 and times == 2:
            raise Deviation("it fell off")


DOORS = replace(contract("trainer"), name="doors", player=_Loose)


@pytest.mark.parametrize("shape", [(), (1,)], ids=["scalar", "element"])
@pytest.mark.parametrize(("to", "rate"), [("", 0.25), ("zero", 0.0), ("default", 0.001)])
def test_a_rate_that_is_a_tensor_is_set_in_place_whatever_its_shape(
    shape: tuple[int, ...], to: str, rate: float
) -> None:
    given = torch.full(shape, 0.5, dtype=torch.float64)
    group = {"lr": given}
    set_option([group], "lr", 0.5, torch.optim.Adam, to)
    assert group["lr"] is given
    assert given.tolist() == torch.full(shape, rate, dtype=torch.float64).tolist()
