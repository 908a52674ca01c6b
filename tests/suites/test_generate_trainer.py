"""Generated sequences for ``trainer``: valid draws, short when they fail, and green where nothing is wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from everyrank import World
from everyrank.fixtures.exemplars.trainer import DataParallel
from everyrank.fixtures.rogues.trainer import ROGUES
from everyrank.suites.engine.subject import Subject
from everyrank.suites.errors import Deviation
from everyrank.suites.moves.data import encode
from everyrank.suites.moves.player import play, play_or_raise
from everyrank.suites.moves.script import Script, call
from everyrank.suites.options import SearchPlan
from everyrank.suites.trainer.model import Group, Model, Param
from everyrank.suites.trainer.player import TrainerPlayer
from everyrank.suites.trainer.subjects.ddp import BUCKET_VIEWS, DDP, STATIC_GRAPH, ZERO
from everyrank.suites.trainer.subjects.exemplars import DATA_PARALLEL, SHARDED
from everyrank.suites.trainer.subjects.pipelines import GPIPE
from everyrank.suites.trainer.subjects.sharded import FSDP2
from everyrank.suites.trainer.subjects.tensor_parallel import TENSOR_PARALLEL

from tests.drawn import drawn, features_without_cases, hypothesis, left_out, search

EVERYTHING = frozenset(TrainerPlayer.features)
ONE = (Param("p0", (2,)),)
STEP = call("step")


def _rogue(name: str) -> Subject:
    (rogue,) = [rogue for rogue in ROGUES if rogue.name == name]
    return replace(DATA_PARALLEL, name=name, build=rogue.build)


SUMS = _rogue("sums")


@hypothesis
@pytest.mark.world(2)
def test_a_script_is_the_same_after_a_journey_as_json(world: World) -> None:
    scripts = drawn(DATA_PARALLEL, world, SearchPlan(20))
    world.all_agree([encode(script) for script in scripts])
    assert [TrainerPlayer.read(encode(script)) for script in scripts] == scripts


@hypothesis
@pytest.mark.world(2)
def test_what_a_subject_does_not_claim_is_not_drawn(world: World) -> None:
    for script in drawn(DATA_PARALLEL, world, SearchPlan(20), frozenset({"SGD"})):
        model = script.model
        plain = Model(3, layers=model.layers, params=model.params, variant=model.variant, losses=False)
        assert model == replace(plain, size=model.size)  # nothing else is set
        assert {each.move for each in script.moves} == {"step"}
        assert {name for each in script.moves for name, _ in each.arguments} <= {"times"}
        assert {(param.layout, param.dtype, param.frozen, param.also) for param in model.params} <= {
            ("plain", "float64", False, "")
        }


@hypothesis
@pytest.mark.world(3, timeout=300)
@pytest.mark.parametrize("subject", [DATA_PARALLEL, SHARDED], ids=lambda subject: subject.name)
def test_the_exemplars_are_green(world: World, process_group: Any, subject: Subject) -> None:
    found = search(subject, world, 3)
    assert (found.problem, found.draws) == ("", 3)


def test_what_the_ledger_of_torchs_own_speaks_of_is_left_out() -> None:
    without = left_out(DDP)
    assert {"sparse gradients", "thawed parameters", "errors"} <= without
    assert not {"Adam", "states", "states of NAdam", "clipping", "own values", "model states, missing"} & without


def test_a_subjects_choices_are_honoured() -> None:
    some_ranks = {"parameters that some ranks use", "microbatches of some ranks"}
    assert some_ranks <= left_out(STATIC_GRAPH)
    assert "parameters that some ranks use" not in left_out(BUCKET_VIEWS)
    assert {"own values", "own buffers", "orders of registration", *some_ranks} <= left_out(FSDP2)


def test_a_feature_is_left_out_if_the_subject_has_no_such_case() -> None:
    # It runs on three ranks only, and the law about wrong states has points of two.
    assert "model states, missing" in left_out(BUCKET_VIEWS)
    assert "model states, missing" not in left_out(DDP)


#: A script for each part of the models and for each move, which the exemplars get right.
EVERY_MOVE = {
    "a step": Script(
        Model(3, layers=(3, 5), params=ONE),
        (
            call("step", times=4, parts=3, rows=(1, 5, 2)),
            call("step", max_norm=0.05, waits=True),
            call("step", spoiled="inf", by=1),
        ),
    ),
    "models": Script(
        Model(
            3,
            params=(
                Param("inner.p0", (2, 4), "transposed", also="p0_again"),
                Param("p1", (), also="other.p1_again"),
                Param("p2", (3,), "gaps"),
                Param("p3", (0, 2)),
                Param("p4", (2,), unused=True),
                Param("p5", (2,), zero=True),
            ),
            buffer=True,
            optimizer="Adam",
            variant="everything",
            own_values=True,
            own_buffer=True,
        ),
        (
            STEP,
            call("step", skips=(2,), skipped_by=(1,)),
            call("step", skips=(1, 2), skipped_by=(0, 1, 2)),
            call("step", skips=(0,)),
            call("step", max_norm=0.5),
        ),
    ),
    "coarse dtypes": Script(
        Model(3, params=(Param("p0", (2,), dtype="float32"), Param("p1", (3,)))), (call("step", times=2), STEP)
    ),
    "complex": Script(
        Model(3, params=(Param("p0", (2,), dtype="complex128"),), optimizer="Adam"), (call("step", times=2),)
    ),
    "sparse": Script(
        Model(3, params=(Param("p0", (3, 2), "embedding"), *ONE)),
        (call("step", parts=2), call("step", skips=(0,), skipped_by=(1,))),
    ),
    "closures": Script(
        Model(3, optimizer="LBFGS", variant="everything"), (STEP, call("step", parts=2), call("refuse"))
    ),
    "orders": Script(
        Model(
            3,
            params=(Param("inner.p0", (2,)), Param("p1", (2,))),
            optimizer="Adam",
            own_values=True,
            reordered=(1,),
        ),
        (
            STEP,
            call("save"),
            call("load", fresh=True, reordered=True, of_first=True),
            STEP,
            call("reshard", before=2, after=3),
        ),
    ),
    "groups": Script(
        Model(
            3,
            params=(Param("p0", (2,)), Param("p1", (2,)), Param("p2", (3,))),
            variant="momentum",
            groups=(Group(1), Group(1, lr=0.5)),
        ),
        (
            STEP,
            call("add_group", count=1, lr=0.25, weight_decay=0.5),
            STEP,
            call("save"),
            call("load", fresh=True),
            STEP,
        ),
    ),
    "options": Script(
        Model(3, params=ONE, variant="everything"),
        (
            call("save"),
            call("change"),
            STEP,
            call("save"),
            call("schedule", gamma=0.5),
            call("step", times=2),
            call("load"),
            call("change", option="momentum", factor=2.0, group=0),
            STEP,
            call("change", option="weight_decay"),
            STEP,
            call("refuse", invalid=1),
        ),
    ),
    "frozen": Script(
        Model(3, params=(Param("p0", (2,)), Param("p1", (2,), frozen=True)), optimizer="Adam"),
        (
            STEP,
            call("freeze", param=0),
            STEP,
            call("save"),
            call("thaw", param=1),
            STEP,
            call("load"),
            STEP,
        ),
    ),
    "apart": Script(
        Model(3, params=(Param("p0", (), frozen=True), Param("p1", (2, 2)))),
        (
            call("fail", rank=1),
            call("reshard", before=3, after=2),
            call("load_wrong", part="model", mutation="missing"),
            call("load_wrong", part="optimizer", mutation="misshapen"),
            call("load_wrong", part="optimizer", mutation="extra"),
        ),
    ),
}


@pytest.mark.world(3, timeout=120)
@pytest.mark.parametrize("subject", [DATA_PARALLEL, SHARDED], ids=lambda subject: subject.name)
@pytest.mark.parametrize("name", EVERY_MOVE)
def test_the_exemplars_keep_every_move(world: World, process_group: Any, name: str, subject: Subject) -> None:
    script = EVERY_MOVE[name]
    params = tuple(
        replace(param, name=f"p{n}") if name == "sparse" else param for n, param in enumerate(script.model.params)
    )
    assert play(subject, replace(script, model=replace(script.model, params=params))) == ""


#: What each of these does wrong, and a script that shows it.
FOUND = {
    "none-is-zero": (
        Script(Model(3, params=(Param("p0", (2,), unused=True),), variant="everything"), (STEP,)),
        "p0: off by",
    ),
    "returns-its-own-loss": (Script(Model(3), (STEP,)), "the loss: off by"),
    "reduces-in-its-own-order": (
        Script(Model(3, params=(*ONE, Param("p1", (2,))), reordered=(2,)), (STEP,)),
        "off by",
    ),
    "loads-no-options": (
        Script(Model(3), (STEP, call("change"), call("save"), call("load", fresh=True), STEP)),
        "off by",
    ),
    "takes-wrong-arguments": (Script(Model(3), (call("refuse"),)), "raised nothing instead of"),
    "names-the-wrong-rank": (Script(Model(3), (call("fail", rank=2),)), "the error does not name rank 2"),
    "loads-what-fits": (
        Script(Model(3), (call("load_wrong", part="model", mutation="extra"),)),
        "a state with an extra entry",
    ),
    "changes-after-returning": (
        Script(Model(3), (call("step", times=4, waits=True),)),
        "some time after step 4",
    ),
    "one-bucket-for-all-dtypes": (
        Script(Model(3, params=(Param("p0", (2,)), Param("p1", (2,), dtype="float32"))), (STEP,)),
        "off by",
    ),
    "looks-at-its-own-loss": (
        Script(Model(3, layers=(5, 3), optimizer="LBFGS", variant="everything"), (STEP, STEP)),
        "off by|has other values|Connection closed|Timed out",
    ),
}


@pytest.mark.world(3, timeout=120)
@pytest.mark.parametrize("name", FOUND)
def test_a_rogue_fails_where_its_fault_shows_and_nowhere_else(world: World, process_group: Any, name: str) -> None:
    draw, text = FOUND[name]
    play_or_raise(_rogue(name), Script(Model(3, losses=False), (STEP,)))
    with pytest.raises(Deviation, match=text):
        play_or_raise(_rogue(name), draw)
    play_or_raise(DATA_PARALLEL, draw)


class _Uneven(DataParallel):
    """Another start on one rank, which the others do not see."""

    def send_start(self) -> None:
        super().send_start()
        if self.rank == 1:
            next(iter(self.named().values())).data.add_(2.0**-52)


@pytest.mark.smoke
@pytest.mark.world(3)
def test_ranks_that_differ_by_one_bit_are_found(world: World, process_group: Any) -> None:
    with pytest.raises(Deviation, match="rank 1 has other values"):
        play_or_raise(replace(DATA_PARALLEL, build=_Uneven), Script(Model(3), (STEP,)))


def test_each_feature_belongs_to_cases_that_exist() -> None:
    assert features_without_cases(DATA_PARALLEL) == []


def test_what_is_more_than_layers_is_left_out_for_those_who_cannot_take_it() -> None:
    features = {"branches", "parameters of no layer", "parameters with gaps", "transposed parameters"}
    assert not features & left_out(DATA_PARALLEL)
    assert "branches" in left_out(GPIPE)
    assert "parameters of no layer" in left_out(TENSOR_PARALLEL)
    assert features & left_out(ZERO) == {"parameters with gaps"}


@pytest.mark.world(3, timeout=120)
def test_an_error_of_fp32_may_reach_the_other_parameters_on_other_ranks(world: World, process_group: Any) -> None:
    params = (Param("p0", (1, 2, 3), dtype="float32"), Param("p1", (2,), dtype="float32"))
    moves = (*[call("save")] * 6, call("reshard", before=3, after=2))  # the batches of the seventh move show it
    play_or_raise(
        DATA_PARALLEL, Script(Model(3, layers=(2,), params=params, variant="everything", reordered=(0,)), moves)
    )


@pytest.mark.world(3, timeout=120)
def test_a_model_that_a_subject_refuses_as_declared_proves_nothing(world: World, process_group: Any) -> None:
    assert play(GPIPE, Script(Model(3), (STEP,))) is None
    assert play(GPIPE, Script(Model(3, layers=(2,)), (STEP,))) == ""
