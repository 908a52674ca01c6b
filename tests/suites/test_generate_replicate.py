"""Scripts of ``replicate``: valid draws, green where nothing is wrong, and red where a fault shows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from everyrank import World
from everyrank.fixtures.rogues.replicate import ROGUES, AlwaysSyncs, DividesWhatIsStillRead
from everyrank.suites.engine.subject import Subject
from everyrank.suites.errors import Deviation
from everyrank.suites.moves.data import encode
from everyrank.suites.moves.player import play, play_or_raise
from everyrank.suites.moves.script import Script, call
from everyrank.suites.options import SearchPlan
from everyrank.suites.replicate.model import Buffer, Model, Param
from everyrank.suites.replicate.player import ReplicatePlayer
from everyrank.suites.replicate.subjects import DDP, EXEMPLAR, TORCH

from tests.drawn import drawn, features_without_cases, hypothesis, left_out, search

EVERYTHING = frozenset(ReplicatePlayer.features)
ONE = (Param("p0", ()),)
TABLE = (Param("p0", (3, 2), "embedding"),)
BACKWARD, STEP = call("backward"), call("step")


def _rogue(kind: type) -> Subject:
    return replace(EXEMPLAR, name=kind.__name__, build=lambda module, **options: kind(module, **options).module)


@hypothesis
@pytest.mark.world(2)
def test_a_script_is_the_same_after_a_journey_as_json(world: World) -> None:
    scripts = drawn(EXEMPLAR, world, SearchPlan(20))
    world.all_agree([encode(script) for script in scripts])
    assert [ReplicatePlayer.read(encode(script)) for script in scripts] == scripts


@hypothesis
@pytest.mark.world(2)
def test_what_a_subject_does_not_claim_is_not_drawn(world: World) -> None:
    for script in drawn(EXEMPLAR, world, SearchPlan(20), frozenset()):
        model = script.model
        plain = Model(model.size, model.params, optimizer=model.optimizer, equal_at_once=False)
        assert model == plain  # nothing else is set
        assert {each.move for each in script.moves} <= {"backward", "step", "clear", "give"}
        arguments = {name for each in script.moves for name, _ in each.arguments}
        assert arguments <= {"times", "rowless", "set_to_none", "to", "own"}
        assert all((param.layout, param.dtype, param.also) == ("plain", "float64", "") for param in model.params)


@hypothesis
@pytest.mark.world(3, timeout=300)
def test_the_exemplar_is_green(world: World, process_group: Any) -> None:
    found = search(EXEMPLAR, world, 4)
    assert (found.problem, found.draws) == ("", 4)


@pytest.mark.parametrize("subject", [TORCH, DDP], ids=lambda subject: subject.name)
def test_what_the_ledgers_of_torchs_own_speak_of_is_left_out(subject: Subject) -> None:
    without = left_out(subject)
    cleared = "unused parameters whose gradients were cleared"
    assert {"thawed parameters", "replaced parameters", "sparse gradients", "errors", cleared} <= without
    assert not {"unused parameters", "tied parameters", "bucket views", "submodules"} & without


#: A script for each part of the models and for each move, which the exemplar gets right.
EVERY_MOVE = {
    "buffers": Script(
        Model(3, ONE, (Buffer("b0", "int64"), Buffer("b1", "bfloat16", gaps=True), Buffer("b2", "bool"))),
        (
            call("set_buffers"),
            call("backward", synced=False),
            call("set_buffers", reassigned=True),
            call("evaluate"),
            call("set_buffers"),
            call("save"),
            call("load"),
            BACKWARD,
        ),
    ),
    "freeze and replace": Script(
        Model(3, ONE, built="small-buckets"),
        (
            call("freeze", param=0),
            BACKWARD,
            call("thaw", param=0),
            BACKWARD,
            call("replace", param=0),
            BACKWARD,
            STEP,
        ),
    ),
    "unused": Script(
        Model(3, (Param("p0", (2,)), Param("other.p1", (3, 2), "transposed", also="p1_again")), asked=True),
        (
            call("backward", skips=(0,), skipped_by=(1,)),
            call("clear"),
            call("backward", synced=False),
            call("clear"),
            call("backward", skips=(1,), skipped_by=(0, 1, 2)),
            STEP,
        ),
    ),
    "accumulate": Script(
        Model(3, TABLE),
        (
            call("backward", synced=False, times=2),
            BACKWARD,
            call("clear", set_to_none=False),
            call("backward", forwards=2, packing="nested"),
            STEP,
        ),
    ),
    "no rows of an embedding": Script(
        Model(3, TABLE, asked=True),
        (call("backward", skips=(0,), skipped_by=(1,)), call("train_unevenly", batches=(1, 2, 2))),
    ),
    "ignored": Script(
        Model(3, (Param("inner.p0", (2,)), *ONE), built="ignored"), (BACKWARD, STEP, call("save"), call("load"))
    ),
    "apart": Script(
        Model(3, (Param("inner.p0", (2,)), Param("other.p1", (2,))), built="apart"),
        (BACKWARD, STEP, call("give", to=(0,), own=True), BACKWARD),
    ),
    "load": Script(
        Model(3, ONE, optimizer="momentum"), (BACKWARD, STEP, call("save"), STEP, call("load", fresh=True), BACKWARD)
    ),
    "in a group of its own": Script(
        Model(3, ONE),
        (
            call("train_unevenly", batches=(1, 3, 2)),
            call("train_unevenly", batches=(2, 1, 2), idle=True),
            call("fail", rank=2, during="forward"),
            call("fail", rank=0, during="between"),
            call("refuse_device"),
        ),
    ),
}


@pytest.mark.world(3, timeout=120)
@pytest.mark.parametrize("name", EVERY_MOVE)
def test_the_exemplar_keeps_every_move(world: World, process_group: Any, name: str) -> None:
    assert play(EXEMPLAR, EVERY_MOVE[name]) == ""


@pytest.mark.smoke
@pytest.mark.world(3)
def test_a_rogue_fails_where_its_fault_shows_and_nowhere_else(world: World, process_group: Any) -> None:
    synced = Script(Model(3, ONE), (BACKWARD, STEP, call("clear")))
    play_or_raise(_rogue(AlwaysSyncs), synced)
    with pytest.raises(Deviation, match=r"mean: move 1, backward\(synced=False.*: off by"):
        play_or_raise(_rogue(AlwaysSyncs), replace(synced, moves=(call("backward", synced=False),)))
    with pytest.raises(Deviation, match=r"move 1, backward\(.*: off by"):
        play_or_raise(_rogue(DividesWhatIsStillRead), EVERY_MOVE["accumulate"])


def test_each_feature_belongs_to_cases_that_exist() -> None:
    assert features_without_cases(EXEMPLAR) == []


COUNTED = Model(3, ONE, (Buffer("b0", "float64"),))
UNSYNCED, UNUSED = call("backward", synced=False), call("backward", skips=(0,), skipped_by=(0, 1, 2))

#: What each rogue that only crossings find does wrong, by a short script.
CROSSED = {
    "sends-no-buffers-after-a-forward-without-sync": (COUNTED, (UNSYNCED, call("set_buffers"), BACKWARD)),
    "adds-what-was-cleared-meanwhile": (Model(3), (UNSYNCED, call("clear"), BACKWARD)),
    "loses-keywords-without-sync": (Model(3), (call("backward", synced=False, packing="keyword"),)),
    "saves-the-buffers-of-the-last-forward": (COUNTED, (BACKWARD, call("set_buffers"), call("save"))),
    "takes-replaced-parameters-for-hooked": (Model(3, ONE), (call("replace", param=0), UNSYNCED, BACKWARD)),
    "frees-zero-gradients": (Model(3, ONE, asked=True), (BACKWARD, call("clear", set_to_none=False), UNUSED)),
}


@pytest.mark.world(3, timeout=120)
@pytest.mark.parametrize("name", CROSSED)
def test_a_fault_that_crosses_things_is_found_by_few_moves(world: World, process_group: Any, name: str) -> None:
    script = Script(*CROSSED[name])
    (rogue,) = [rogue for rogue in ROGUES if rogue.name == name]
    play_or_raise(EXEMPLAR, script)
    with pytest.raises(Deviation, match=f"move {len(script.moves)}, "):
        play_or_raise(replace(EXEMPLAR, name=name, build=rogue.build), script)
