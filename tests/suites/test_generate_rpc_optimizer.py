"""Sequences drawn for ``rpc-optimizer``: rank 0 carries them out on parameters that all ranks own."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
import torch.distributed.rpc as rpc
from everyrank import World
from everyrank.fixtures.exemplars.rpc_optimizer import RpcOptimizer
from everyrank.fixtures.rogues.rpc_optimizer import NoneIsZero, Unfreezes, WritesOnOthers
from everyrank.fixtures.rogues.rpc_optimizer.arguments import HasDefaultsOfItsOwn, LosesOverrides
from everyrank.fixtures.rogues.rpc_optimizer.errors import ForgetsStateAfterError, SwapsNames, TakesNoLock
from everyrank.fixtures.rogues.rpc_optimizer.steps import DoublesSecondStep
from everyrank.fixtures.rogues.rpc_optimizer.surface import (
    IgnoresClosures,
    LoadsNoState,
    Saves,
    SchedulesACopy,
    TakesClosures,
)
from everyrank.suites.arena import surface
from everyrank.suites.errors import Deviation
from everyrank.suites.generate.plan import SearchPlan
from everyrank.suites.generate.replay import replay
from everyrank.suites.rpc_optimizer.besides import PARTS
from everyrank.suites.rpc_optimizer.grammar import (
    GRAMMAR,
    Another,
    Beside,
    Draw,
    FailBuild,
    Invalid,
    Optimizer,
    Param,
    Refused,
    Renew,
    Sabotage,
    Step,
    Together,
    Use,
)
from everyrank.suites.rpc_optimizer.subjects import EAGER, EXEMPLAR, SCRIPTED

from tests.drawn import check_journey, check_planted_bug, drawn, features_without_cases, hypothesis, left_out, search

EVERYTHING = frozenset(GRAMMAR.features)
DOUBLES = replace(EXEMPLAR, name="doubles", build=DoublesSecondStep)

with_agents = pytest.mark.rpc(num_worker_threads=4, rpc_timeout=20)

#: One parameter on each worker, and one that worker1 has twice.
PARAMS = (Param(1, (2,)), Param(2, (2, 3), layout="transposed"), Param(0, ()), Param(1, (2,), same_as=0))
PLANTED = (Optimizer((0, 1, 2), own="planted"),)


@hypothesis
@pytest.mark.world(1)
def test_a_draw_is_the_same_after_a_journey_as_json_and_as_code(world: World) -> None:
    check_journey(GRAMMAR, drawn(GRAMMAR, EXEMPLAR, world, SearchPlan(20)))


@hypothesis
@pytest.mark.world(1)
def test_what_torchs_ledgers_speak_of_is_not_drawn_for_it(world: World) -> None:
    assert not left_out(GRAMMAR, EXEMPLAR)
    eager = {"missing gradients", "empty contexts", "parameters of no optimizer", "errors in several steps"}
    assert eager <= left_out(GRAMMAR, EAGER)
    assert "contexts beside each other" not in left_out(GRAMMAR, EAGER)
    scripted = {"steps at the same time", "SGD defaults", "Rprop lr", "Adagrad with missing gradients", "bf16"}
    assert scripted <= left_out(GRAMMAR, SCRIPTED)
    for draw in drawn(GRAMMAR, EAGER, world, SearchPlan(20), EVERYTHING - left_out(GRAMMAR, EAGER)):
        trained = {number for number, param in enumerate(draw.params) if not param.frozen}
        steps = [action for action in draw.actions if isinstance(action, Step)]
        assert all({number for numbers in step.backwards for number in numbers} == trained for step in steps)


@hypothesis
@with_agents
@pytest.mark.world(3, timeout=300)
def test_a_planted_bug_shrinks_to_a_few_actions_and_the_printed_test_reproduces_it(
    world: World, warm_rpc_agent: Any
) -> None:
    check_planted_bug(GRAMMAR, DOUBLES, world, warm_rpc_agent)


@hypothesis
@with_agents
@pytest.mark.world(3, timeout=300)
def test_the_exemplar_is_green(world: World, warm_rpc_agent: Any) -> None:
    found = search(GRAMMAR, EXEMPLAR, world, 10, EVERYTHING)
    assert found.problem == ""
    assert world.rank or found.draws + found.rejected >= 10


@pytest.mark.smoke
@with_agents
@pytest.mark.world(3)
def test_every_kind_of_action_is_carried_out_without_hypothesis(world: World, warm_rpc_agent: Any) -> None:
    each = (0, 1, 2, 3)
    actions = (
        Step((each,), times=2),
        Step((each,), by=(0, 0), again=True),
        Step(()),
        Beside(each, each, newer_first=True),
        Refused("unknown"),
        Refused("closed"),
        Invalid("SGD", "empty-list"),
        Invalid("SGD", "non-leaf"),
        Invalid("Adam", "lr-negative"),
        Sabotage(0, failing=(1, 2)),
        Sabotage(0, failing=(2,), foreign=True),
        Sabotage(0, slow=1),
        FailBuild((0, 1), failing=2),
        *(Use((part,)) for part in PARTS),
        Use(tuple(surface.PARTS)),
        Another(Optimizer((0, 1, 2), "Adam", "defaults"), times=2),
        Renew(),
        Step((each,)),
    )
    replay(EXEMPLAR, Draw(3, PARAMS, PLANTED, actions))
    replay(EXEMPLAR, Draw(3, PARAMS[:1], (Optimizer((0,), own="planted"),) * 2, (Together((0, 1)),)))


#: What each of these does wrong, and the shortest draw that shows it.
WRONG = {
    "a missing gradient is no zero": (
        NoneIsZero,
        Draw(3, PARAMS[:1], (Optimizer((0,), variant="weight-decay"),), (Step(()),)),
        "parameter 0 on worker1: off by",
    ),
    "a parameter of no optimizer": (
        WritesOnOthers,
        Draw(3, (Param(1, (2,)), Param(1, (2,))), (Optimizer((1,)),), (Step(((0, 1),)),)),
        "the .grad of parameter 0 on worker1 was set, which no optimizer was given",
    ),
    "two errors": (
        SwapsNames,
        Draw(3, PARAMS, PLANTED, (Sabotage(0, failing=(1, 2)),)),
        "an error stands under another worker's name",
    ),
    "the step after an error": (
        ForgetsStateAfterError,
        Draw(3, PARAMS, PLANTED, (Step(((0,),)), Sabotage(0, failing=(1,)), Step(((0,),)))),
        r"action 3, .*parameter 0 on worker1: off by",
    ),
    "steps at the same time": (
        TakesNoLock,
        Draw(3, PARAMS[:1], (Optimizer((0,), own="planted"),), (Together((0, 0)),)),
        "two steps of one parameter were made at the same time on worker1",
    ),
    "a learning rate that only the caller has": (
        SchedulesACopy,
        Draw(3, PARAMS[:1], (Optimizer((0,)),), (Use(("param-groups",)),)),
        "parameter 0 on worker1: off by",
    ),
    "a state that is not loaded": (
        LoadsNoState,
        Draw(3, PARAMS[:1], (Optimizer((0,), variant="momentum"),), (Use(("state-dict",)),)),
        "parameter 0 on worker1: off by",
    ),
    "a closure that is ignored": (
        IgnoresClosures,
        Draw(3, PARAMS[:1], (Optimizer((0,)),), (Use(("closure-by-name",)),)),
        "step took a closure and evaluated it 0 times",
    ),
    "a frozen parameter that is in the loss": (
        Unfreezes,
        Draw(3, (Param(1, (2,)), Param(1, (2,), frozen=True)), (Optimizer((0, 1)),), (Step(((0,),)),)),
        "parameter 1 on worker1: off by",
    ),
    "a class of the user's own with the name of torch's": (
        LosesOverrides,
        Draw(3, PARAMS[:1], (Optimizer((0,), own="signed"),), (Step(((0,),)),)),
        "parameter 0 on worker1: off by",
    ),
    "an optimizer without arguments": (
        HasDefaultsOfItsOwn,
        Draw(3, PARAMS[:1], (Optimizer((0,), "Adam", "defaults"),), (Step(((0,),)),)),
        "parameter 0 on worker1: off by",
    ),
}


#: What works besides the step; it goes on as it was after each part.
WORKS = {"state-dict": Saves, "closure": TakesClosures, "closure-by-name": TakesClosures}


@with_agents
@pytest.mark.world(3)
@pytest.mark.parametrize("part", sorted(WORKS))
def test_a_draw_is_green_where_a_part_works(world: World, warm_rpc_agent: Any, part: str) -> None:
    subject = replace(EXEMPLAR, name=part, build=WORKS[part])
    adam = (Optimizer((0, 1, 2), "Adam", "everything", given="positional"),)
    for optimizers in (adam, PLANTED):
        replay(
            subject,
            Draw(3, PARAMS, optimizers, (Step(((0, 1, 2),)), Use((part,)), Use((part,)), Renew(), Use((part,)))),
        )


@with_agents
@pytest.mark.world(3)
@pytest.mark.parametrize("fault", sorted(WRONG))
def test_a_draw_finds_what_is_wrong(world: World, warm_rpc_agent: Any, fault: str) -> None:
    build, draw, text = WRONG[fault]
    subject = replace(EXEMPLAR, name=fault, build=build)
    if world.rank:
        replay(subject, draw)  # the driver finds it
        return
    with pytest.raises(Deviation, match=text):
        replay(subject, draw)


def test_each_feature_belongs_to_cases_that_exist() -> None:
    assert features_without_cases(GRAMMAR, EXEMPLAR) == []


BEGUN: list[str] = []


def _has_begun() -> bool:
    return bool(BEGUN)


class AsksWorker1(RpcOptimizer):
    """Is built only if the test has begun on rank 1."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if not rpc.rpc_sync("worker1", _has_begun):
            raise RuntimeError("the test has not begun on rank 1")
        super().__init__(*args, **kwargs)


@with_agents
@pytest.mark.world(3)
def test_a_draw_begins_when_the_test_has_begun_on_every_rank(world: World, warm_rpc_agent: Any) -> None:
    """A rank seeds its generators when its test begins; a draw under way would see them change."""
    draw = Draw(3, PARAMS, PLANTED, (Step(((0, 1, 2),)),))
    replay(EXEMPLAR, draw)  # what torch imports late is imported
    world.barrier()
    if world.rank == 1:
        time.sleep(0.5)  # as on a busy machine
        BEGUN.append("this test")
    replay(replace(EXEMPLAR, build=AsksWorker1), draw)
