"""Kinds of state: each move names what it changes and looks at; what no move does has a reason. Flows of state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from everyrank.cli import main
from everyrank.suites.engine.contract import contract, contracts
from everyrank.suites.moves.crossing import Crossing, crossings
from everyrank.suites.moves.file import stored
from everyrank.suites.moves.flow import START, Flow, all_flows, flowing, flowing_again, flows_of
from everyrank.suites.moves.move import move
from everyrank.suites.moves.player import Player
from everyrank.suites.moves.states import KINDS, holes, moves_on_state, table
from everyrank.suites.trainer.model import Model
from everyrank.suites.trainer.player import TrainerPlayer

every_player = pytest.mark.parametrize("name", [name for name in contracts() if contract(name).player is not None])


@every_player
def test_each_hole_has_a_reason_and_each_reason_a_hole(name: str) -> None:
    player = contract(name).part("player")
    assert set(holes(player)) == set(player.holes), f"everyrank cases {name} --moves"
    assert all(player.holes.values())


@every_player
def test_each_move_on_the_objects_of_the_script_names_a_kind_of_state(name: str) -> None:
    moves = moves_on_state(contract(name).part("player"))
    assert [move.name for move in moves if not move.writes and not move.reads] == []


class _Lamp(Player):
    """It is switched, saved and loaded; nobody looks at its colour, and nobody but a load changes its shade."""

    holes = {"colour": "it is for decoration"}

    @move("lamp", writes=("light", "colour"), reads=("light",))
    def switch(self) -> None:
        """Switch it."""

    @move("lamp", writes=("saved state",), reads=("light", "shade"))
    def save(self) -> None:
        """Save it."""

    @move("lamp", writes=("light", "shade"), reads=("saved state",))
    def load(self) -> None:
        """Load it."""

    @move("lamp", apart=True)
    def buy(self) -> None:
        """Buy another one."""


def test_what_only_a_load_changes_and_what_no_move_reads_are_holes() -> None:
    found = {kind: text for kind, text in holes(_Lamp).items() if kind not in KINDS}
    assert found == {"colour": "no move reads it after", "shade": "no move changes it before a save"}


def test_the_table_has_a_line_for_each_kind_and_each_hole() -> None:
    lines = [line for line in table(_Lamp) if not set(KINDS) & {line.split("  ")[0], line.split(": ")[-1]}]
    assert [line for line in lines if not any(f"hole: {kind}:" in line for kind in KINDS)] == [
        "                 switch  save  load",
        "light            wr      r     w",
        "colour           w       .     .",
        "shade            .       r     w",
        "w: the move may change it; r: what the move does depends on it, rightly or by a subject's mistake",
        "hole: colour: no move reads it after: it is for decoration",
        "hole: shade: no move changes it before a save: without a reason",
    ]


# --- flows -------------------------------------------------------------------------------------------

_SWITCH, _SAVE, _LOAD = ("switch", 0), ("save", 0), ("load", 0)


def test_a_flow_goes_from_the_last_change_to_what_looks_at_it_also_by_way_of_a_save_and_a_load() -> None:
    script = Crossing({}, (_SWITCH, _SAVE, _SWITCH, _LOAD, ("buy", 0), _SWITCH, _SAVE))
    assert flows_of(_Lamp, [script]) == {
        Flow("light", _SWITCH, None, "switch"),
        Flow("light", _SWITCH, None, "save"),
        Flow("saved state", _SAVE, None, "load"),
        Flow("light", _SWITCH, _LOAD, "switch"),
    }
    assert all_flows(_Lamp) - flows_of(_Lamp, [script]) == {Flow("light", _SWITCH, _LOAD, "save")}


def test_what_was_changed_after_a_save_is_gone_after_a_load() -> None:
    script = Crossing({}, (_SAVE, _SWITCH, _LOAD, _SAVE))
    assert flows_of(_Lamp, [script]) == {Flow("saved state", _SAVE, None, "load")}, (
        "nothing was switched when it was saved"
    )


def test_the_crossings_of_trainer_have_each_flow_that_is_possible() -> None:
    every = stored(TrainerPlayer)
    count = 1 + max(number for number, (_, full) in enumerate(every) if full)
    scripts = [crossing for crossing, full in every[:count] if not full]
    further = [crossing for crossing, _ in every[count:][: len(TrainerPlayer.flows)]]
    left = all_flows(TrainerPlayer, 0) - flows_of(TrainerPlayer, [*scripts, *further])
    # After a step with infinity on a rank nothing can be seen until a state is loaded.
    assert {flow.changed_by for flow in left} == {("step", 8)}
    assert further == flowing(TrainerPlayer, scripts)


def test_a_parameter_of_trainer_is_used_first_after_each_kind_of_load() -> None:
    found = flows_of(TrainerPlayer, [crossing for crossing, full in stored(TrainerPlayer) if not full])
    to_use = {flow.load for flow in found if (flow.kind, flow.read_by) == ("optimizer state", "use")}
    assert to_use >= {("load", kind) for kind in range(4)}


def _left(name: str) -> tuple[set[Flow], set[Flow]]:
    """Return the flows that the default crossings of a contract have, and those that they do not have."""
    player = contract(name).part("player")
    scripts = [crossing for crossing, full in stored(player) if not full]
    found = flowing(player, scripts[:96])
    assert scripts[96:][: len(found)] == found, f"{len(found)} scripts for flows"
    found = flows_of(player, scripts)
    return found, all_flows(player, player.flow_layer) - found


def test_flows_come_again_on_models_that_came_later() -> None:
    player = contract("sharded-optimizer").part("player")
    count = sum(map(len, player.flows_again.values()))
    since = sum(player.further_scripts.get(layer, 0) for layer in player.layers_alone)
    assert [crossing for crossing, _ in stored(player)[-count - since : -since]] == flowing_again(player)


def test_the_crossings_of_sharded_optimizer_have_each_flow_that_is_possible() -> None:
    found, left = _left("sharded-optimizer")
    assert len(found) == 957
    own, rows = ("train", 3), ("train", 4)
    # After gradients that differ between ranks no further step is defined; of a table no closure and no norm is.
    assert {(flow.changed_by, flow.read_by) for flow in left} == {
        *((own, reader) for reader in ("step", "clip", "clear")),
        *((rows, reader) for reader in ("step_with_closure", "clip")),
    }
    assert all(flow.load is None for flow in left if flow.changed_by == own)


def test_the_crossings_of_rpc_optimizer_have_nearly_each_flow_that_is_possible() -> None:
    found, left = _left("rpc-optimizer")
    assert len(found) == 1899
    several, split = ("fail", 1), ("step", 9)
    # Two steps meet where one owner has all: there are no several that fail, and no backwards for each.
    # A context that was released is not there to be used, or to be released.
    impossible = {((event, None), "together") for event in (several, split)}
    impossible |= {((("release", 0), None), reader) for reader in ("release", "step_held")}
    later = {flow for flow in left if ((flow.changed_by, None), flow.read_by) not in impossible}
    assert {(flow.changed_by, flow.load) for flow in later} == {(several, ("load", 1))}
    assert len(later) == 14


def test_the_crossings_of_replicate_have_each_flow_that_is_possible() -> None:
    found, left = _left("replicate")
    assert len(found) == 269
    # What was built afresh is saved early alone, and no step is defined where gradients differ between ranks.
    stepped = {flow for flow in left if (flow.kind, flow.read_by) == ("gradient", "step")}
    assert {flow.changed_by for flow in stepped} == {("backward", 1), ("backward", 7), ("give", 1)}
    # The buffers of a forward whose backward raised are sent again before each further one.
    later = {flow for flow in left - stepped if flow.changed_by != ("raise_in_backward", 0)}
    assert {(flow.kind, flow.load, flow.read_by) for flow in later} == {("buffer", ("load", 1), "save")}


def test_the_crossings_of_parameter_server_have_each_flow_that_is_possible() -> None:
    _, left = _left("parameter-server")
    assert len(left) == 8
    # Where a round expires no reports meet.
    assert {flow.kind for flow in left} == {"round"}
    assert all("expire" in (flow.changed_by[0], flow.read_by) for flow in left)


def test_a_state_that_is_saved_at_the_start_flows_into_what_follows_its_load() -> None:
    player = type("Player", (_Lamp,), {"flows_from_start": True})
    script = Crossing({}, (_SAVE, _SWITCH, _LOAD, _SWITCH))
    assert Flow("light", START, _LOAD, "switch") in flows_of(player, [script]) & all_flows(player)
    assert not [flow for flow in all_flows(player) if flow.changed_by == START and not flow.load]


class _Doors(_Lamp):
    flows = ({},)
    flow_layer = 1

    @classmethod
    def model_of(cls, traits: Mapping[str, Any], features: frozenset[str]) -> Model:
        return Model(1)

    @move("lamp", kinds=(), further={1: ({},)}, reads=("light",))
    def wave(self) -> None:
        """Wave a hand."""


def test_a_kind_of_arguments_that_came_later_is_in_scripts_for_flows_alone() -> None:
    assert "wave" not in {name for script in crossings(_Doors).scripts for name, _ in script.events}
    assert "wave" in {name for script in flowing(_Doors, crossings(_Doors).scripts) for name, _ in script.events}


def test_the_command_prints_the_table_of_a_contract(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cases", "trainer", "--moves"]) == 0
    out = capsys.readouterr().out
    assert [line.split()[1] for line in out.splitlines() if line.startswith("generator ")] == ["wr"]  # a step
    assert "flows from a change to what looks at it: 1117 of 2241 are in the crossings of the default profile" in out
