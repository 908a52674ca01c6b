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
from everyrank.suites.generate.data import encode
from everyrank.suites.generate.plan import SearchPlan
from everyrank.suites.generate.replay import perform, replay
from everyrank.suites.generate.search import Search
from everyrank.suites.trainer.grammar import (
    GRAMMAR,
    AddGroup,
    Draw,
    Fail,
    Freeze,
    Group,
    Load,
    Param,
    Refuse,
    Reshard,
    Save,
    Schedule,
    SetRate,
    Step,
    WrongState,
)
from everyrank.suites.trainer.subjects.ddp import BUCKET_VIEWS, DDP, STATIC_GRAPH, ZERO
from everyrank.suites.trainer.subjects.exemplars import DATA_PARALLEL, SHARDED
from everyrank.suites.trainer.subjects.pipelines import GPIPE
from everyrank.suites.trainer.subjects.sharded import FSDP2
from everyrank.suites.trainer.subjects.tensor_parallel import TENSOR_PARALLEL

from tests.drawn import check_journey, drawn, features_without_cases, hypothesis, left_out

EVERYTHING = frozenset(GRAMMAR.features)
ONE = (Param("p0", (2,)),)


def _rogue(name: str) -> Subject:
    (rogue,) = [rogue for rogue in ROGUES if rogue.name == name]
    return replace(DATA_PARALLEL, name=name, build=rogue.build)


SUMS = _rogue("sums")


@hypothesis
@pytest.mark.world(2)
def test_a_draw_is_the_same_after_a_journey_as_json_and_as_code(world: World) -> None:
    draws = drawn(GRAMMAR, DATA_PARALLEL, world, SearchPlan(20))
    world.all_agree([encode(draw) for draw in draws])
    check_journey(GRAMMAR, draws)


@hypothesis
@pytest.mark.world(2)
def test_what_a_subject_does_not_claim_is_not_drawn(world: World) -> None:
    for draw in drawn(GRAMMAR, DATA_PARALLEL, world, SearchPlan(20), frozenset({"SGD"})):
        assert draw == Draw(
            draw.size, draw.actions, draw.layers, draw.params, variant=draw.variant, losses=False
        )  # nothing else is set
        for action in draw.actions:
            assert action == Step(times=getattr(action, "times", 1))
        assert {(param.layout, param.dtype, param.frozen, param.also) for param in draw.params} <= {
            ("plain", "float64", False, "")
        }


@hypothesis
@pytest.mark.world(3, timeout=300)
@pytest.mark.parametrize("subject", [DATA_PARALLEL, SHARDED], ids=lambda subject: subject.name)
def test_the_exemplars_are_green(world: World, process_group: Any, subject: Subject) -> None:
    found = Search(GRAMMAR, subject, EVERYTHING, world).run(SearchPlan(3))
    assert (found.problem, found.draws) == ("", 3)


def test_what_the_ledger_of_torchs_own_speaks_of_is_left_out() -> None:
    without = left_out(GRAMMAR, DDP)
    assert {"sparse gradients", "thawed parameters", "errors", "states of NAdam"} <= without
    assert not {"Adam", "states", "clipping", "own values", "model states, missing"} & without


def test_a_subjects_choices_are_honoured() -> None:
    some_ranks = {"parameters that some ranks use", "microbatches of some ranks"}
    assert some_ranks <= left_out(GRAMMAR, STATIC_GRAPH)
    assert "parameters that some ranks use" not in left_out(GRAMMAR, BUCKET_VIEWS)
    assert {"own values", "own buffers", "orders of registration", *some_ranks} <= left_out(GRAMMAR, FSDP2)


def test_a_feature_is_left_out_if_the_subject_has_no_such_case() -> None:
    # It runs on three ranks only, and the law about wrong states has points of two.
    assert "model states, missing" in left_out(GRAMMAR, BUCKET_VIEWS)
    assert "model states, missing" not in left_out(GRAMMAR, DDP)


#: A sequence for each part of the grammar, which the exemplars get right.
EVERY_ACTION = {
    "a step": Draw(
        3,
        (
            Step(times=4, parts=3, rows=(1, 5, 2)),
            Step(max_norm=0.05, waits=True),
            Step(spoiled="inf", by=1),
            Step(),
        ),
        layers=(3, 5),
        params=ONE,
    ),
    "models": Draw(
        3,
        (Step(), Step(skips=(2,), skipped_by=(1,)), Step(skips=(1, 2), skipped_by=(0, 1, 2)), Step(max_norm=0.5)),
        params=(
            Param("inner.p0", (2, 4), "transposed", also="p0_again"),
            Param("p1", (), also="other.p1_again"),
            Param("p2", (3,), "gaps"),
            Param("p3", (0, 2)),
            Param("p4", (2,), unused=True),
        ),
        buffer=True,
        optimizer="Adam",
        variant="everything",
        own_values=True,
        own_buffer=True,
    ),
    "coarse dtypes": Draw(3, (Step(2), Step()), params=(Param("p0", (2,), dtype="float32"), Param("p1", (3,)))),
    "complex": Draw(3, (Step(2),), params=(Param("p0", (2,), dtype="complex128"),), optimizer="Adam"),
    "sparse": Draw(
        3, (Step(parts=2), Step(skips=(0,), skipped_by=(1,))), params=(Param("p0", (3, 2), "embedding"), *ONE)
    ),
    "closures": Draw(3, (Step(), Step(parts=2), Refuse(0)), optimizer="LBFGS", variant="everything"),
    "orders": Draw(
        3,
        (Step(), Save(), Load(fresh=True, reordered=True, of_first=True), Step(), Reshard(2, 3)),
        params=(Param("inner.p0", (2,)), Param("p1", (2,))),
        optimizer="Adam",
        own_values=True,
        reordered=(1,),
    ),
    "groups": Draw(
        3,
        (Step(), AddGroup(Group(1, lr=0.25, weight_decay=0.5)), Step(), Save(), Load(fresh=True), Step()),
        params=(Param("p0", (2,)), Param("p1", (2,)), Param("p2", (3,))),
        variant="momentum",
        groups=(Group(1), Group(1, lr=0.5)),
    ),
    "options": Draw(
        3,
        (Save(), SetRate(0.5), Step(), Save(), Schedule(0.5), Step(2), Load(), SetRate(2.0, 0), Step(), Refuse(1)),
        params=ONE,
        variant="everything",
    ),
    "frozen": Draw(
        3,
        (Step(), Freeze(0), Step(), Save(), Freeze(1, frozen=False), Step(), Load(), Step()),
        params=(Param("p0", (2,)), Param("p1", (2,), frozen=True)),
        optimizer="Adam",
    ),
    "apart": Draw(
        3,
        (
            Fail(1),
            Reshard(3, 2),
            WrongState("model", "missing"),
            WrongState("optimizer", "misshapen"),
            WrongState("optimizer", "extra"),
        ),
        params=(Param("p0", (), frozen=True), Param("p1", (2, 2))),
    ),
}


@pytest.mark.world(3, timeout=120)
@pytest.mark.parametrize("subject", [DATA_PARALLEL, SHARDED], ids=lambda subject: subject.name)
@pytest.mark.parametrize("name", EVERY_ACTION)
def test_the_exemplars_keep_each_part_of_the_grammar(
    world: World, process_group: Any, name: str, subject: Subject
) -> None:
    draw = EVERY_ACTION[name]
    if any(param.layout == "embedding" for param in draw.params):
        draw = replace(draw, params=tuple(replace(param, name=f"p{n}") for n, param in enumerate(draw.params)))
    assert perform(GRAMMAR, subject, draw, world) == ""


#: What each of these does wrong, and a draw that shows it.
FOUND = {
    "none-is-zero": (
        Draw(3, (Step(),), params=(Param("p0", (2,), unused=True),), variant="everything"),
        "p0: off by",
    ),
    "returns-its-own-loss": (Draw(3, (Step(),)), "the loss: off by"),
    "reduces-in-its-own-order": (
        Draw(3, (Step(),), params=(*ONE, Param("p1", (2,))), reordered=(2,)),
        "off by",
    ),
    "loads-no-options": (Draw(3, (Step(), SetRate(0.5), Save(), Load(fresh=True), Step())), "off by"),
    "takes-wrong-arguments": (Draw(3, (Refuse(0),)), "raised nothing instead of"),
    "names-the-wrong-rank": (Draw(3, (Fail(2),)), "the error does not name rank 2"),
    "loads-what-fits": (Draw(3, (WrongState("model", "extra"),)), "a state with a extra entry"),
    "changes-after-returning": (Draw(3, (Step(times=4, waits=True),)), "some time after the step"),
    "one-bucket-for-all-dtypes": (
        Draw(3, (Step(),), params=(Param("p0", (2,)), Param("p1", (2,), dtype="float32"))),
        "off by",
    ),
    "looks-at-its-own-loss": (
        Draw(3, (Step(), Step()), layers=(5, 3), optimizer="LBFGS", variant="everything"),
        "off by|has other parameters|Connection closed|Timed out",
    ),
}


@pytest.mark.world(3, timeout=120)
@pytest.mark.parametrize("name", FOUND)
def test_a_rogue_fails_where_its_fault_shows_and_nowhere_else(world: World, process_group: Any, name: str) -> None:
    draw, text = FOUND[name]
    replay(_rogue(name), Draw(3, (Step(),), losses=False))
    with pytest.raises(Deviation, match=text):
        replay(_rogue(name), draw)
    replay(DATA_PARALLEL, draw)


class _Uneven(DataParallel):
    """Another start on one rank, which the others do not see."""

    def send_start(self) -> None:
        super().send_start()
        if self.rank == 1:
            next(iter(self.named().values())).data.add_(2.0**-52)


@pytest.mark.smoke
@pytest.mark.world(3)
def test_ranks_that_differ_by_one_bit_are_found(world: World, process_group: Any) -> None:
    with pytest.raises(Deviation, match="rank 1 has other parameters"):
        replay(replace(DATA_PARALLEL, build=_Uneven), Draw(3, (Step(),)))


def test_each_feature_belongs_to_cases_that_exist() -> None:
    assert features_without_cases(GRAMMAR, DATA_PARALLEL) == []


def test_what_is_more_than_layers_is_left_out_for_those_who_cannot_take_it() -> None:
    features = {"branches", "parameters of no layer", "parameters with gaps", "transposed parameters"}
    assert not features & left_out(GRAMMAR, DATA_PARALLEL)
    assert "branches" in left_out(GRAMMAR, GPIPE)
    assert "parameters of no layer" in left_out(GRAMMAR, TENSOR_PARALLEL)
    assert features & left_out(GRAMMAR, ZERO) == {"parameters with gaps"}


@pytest.mark.world(3, timeout=120)
def test_an_error_of_fp32_may_reach_the_other_parameters_on_other_ranks(world: World, process_group: Any) -> None:
    params = (Param("p0", (1, 2, 3), dtype="float32"), Param("p1", (2,), dtype="float32"))
    actions = (*[Save()] * 6, Reshard(3, 2))  # the batches of the seventh action show it
    draw = Draw(3, actions, layers=(2,), params=params, variant="everything", reordered=(0,))
    replay(DATA_PARALLEL, draw)


@pytest.mark.world(3, timeout=120)
def test_a_model_that_a_subject_refuses_as_declared_proves_nothing(world: World, process_group: Any) -> None:
    one_layer = Draw(3, (Step(),))
    assert perform(GRAMMAR, GPIPE, one_layer, world) is None
    assert perform(GRAMMAR, GPIPE, replace(one_layer, layers=(2,)), world) == ""
