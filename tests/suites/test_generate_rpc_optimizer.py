"""Scripts of ``rpc-optimizer``: a client makes each step, on parameters that all ranks own and compare."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from everyrank import World
from everyrank.fixtures.rogues.rpc_optimizer import WritesOnOthers
from everyrank.fixtures.rogues.rpc_optimizer.crossings import Tunes
from everyrank.fixtures.rogues.rpc_optimizer.errors import SwapsNames, TakesNoLock
from everyrank.fixtures.rogues.rpc_optimizer.steps import DoublesSecondStep
from everyrank.fixtures.rogues.rpc_optimizer.surface import IgnoresClosures, LoadsNoState, Saves, TakesClosures
from everyrank.suites.arena import surface
from everyrank.suites.errors import Deviation
from everyrank.suites.moves.crossing import crossings, stored
from everyrank.suites.moves.player import play_or_raise
from everyrank.suites.moves.script import Script, call
from everyrank.suites.options import SearchPlan
from everyrank.suites.rpc_optimizer.model import Model, Optimizer, Param
from everyrank.suites.rpc_optimizer.player import RpcPlayer
from everyrank.suites.rpc_optimizer.subjects import EAGER, EXEMPLAR, SCRIPTED

from tests.drawn import check_journey, drawn, features_without_cases, hypothesis, left_out, printed_test, search

EVERYTHING = frozenset(RpcPlayer.features)

with_agents = pytest.mark.rpc(num_worker_threads=4, rpc_timeout=20)

#: One parameter on each worker, and one that worker1 has twice.
PARAMS = (Param(1, (2,)), Param(2, (2, 3), layout="transposed"), Param(0, ()), Param(1, (2,), same_as=0))
PLANTED = Optimizer((0, 1, 2), variant="momentum", own="planted")


@hypothesis
@pytest.mark.world(1)
def test_a_draw_is_the_same_after_a_journey_as_json_and_as_code(world: World) -> None:
    scripts = drawn(EXEMPLAR, world, SearchPlan(20))
    check_journey(EXEMPLAR, [each.model for each in scripts])


@hypothesis
@pytest.mark.world(1)
def test_what_torchs_ledgers_speak_of_is_not_drawn_for_it(world: World) -> None:
    assert not left_out(EXEMPLAR)
    eager = {"missing gradients", "empty contexts", "parameters of no optimizer", "errors in several steps"}
    assert eager <= left_out(EAGER)
    assert "contexts beside each other" not in left_out(EAGER)
    scripted = {"steps at the same time", "SGD defaults", "Rprop lr", "Adagrad with missing gradients", "bf16"}
    assert scripted <= left_out(SCRIPTED)
    for script in drawn(EAGER, world, SearchPlan(20), EVERYTHING - left_out(EAGER)):
        assert not any("missing" in dict(each.arguments) for each in script.moves)
        assert {script.model.tensor(number) for number in range(len(script.model.params))} == script.model.given


#: A printed test imports its subject by name.
DOUBLES = replace(EXEMPLAR, name="doubles", build=DoublesSecondStep)


@hypothesis
@with_agents
@pytest.mark.world(3, timeout=300)
def test_a_planted_bug_shrinks_to_a_few_moves_and_the_printed_test_reproduces_it(
    world: World, warm_rpc_agent: Any
) -> None:
    found = search(DOUBLES, world, 100)
    assert found.draw is not None
    assert len(found.draw.moves) <= 2
    assert len(found.draw.model.params) == 1
    test: Any = printed_test(DOUBLES, found.draw)
    assert [mark.name for mark in test.pytestmark] == ["rpc", "world"]
    with pytest.raises(Deviation) as caught:
        test(warm_rpc_agent)
    assert str(caught.value) == found.problem


@hypothesis
@with_agents
@pytest.mark.world(3, timeout=300)
def test_the_exemplar_is_green(world: World, warm_rpc_agent: Any) -> None:
    found = search(EXEMPLAR, world, 10)
    assert found.problem == ""
    assert found.draws + found.rejected >= 10


@pytest.mark.smoke
@with_agents
@pytest.mark.world(3)
def test_every_move_is_made_without_hypothesis(world: World, warm_rpc_agent: Any) -> None:
    moves = (
        call("step"),
        call("step", by=(0, 0), context="again"),
        call("step", context="resumed"),
        call("step", missing=(0, 1, 2, 3)),
        call("hold"),
        call("step", by=(1,)),
        call("step_held"),
        call("release"),
        call("refuse", context="unknown"),
        call("refuse", context="closed"),
        call("fail", owner=1, also=(2,)),
        call("fail", owner=2, foreign=True),
        call("wait", owner=0, by=1),
        call("fail_build", owner=2),
        call("invalid"),
        call("invalid", name="non-leaf"),
        call("invalid", optimizer="Adam", name="lr-negative"),
        call("renew"),
        call("another", name="Adam", variant="everything", given="positional"),
        *(call("use", part=part) for part in surface.PARTS),
        call("step_with_closure"),
        call("save"),
        call("load"),
        call("change"),
        call("freeze", param=0),
        call("leave", param=1),
        call("step"),
        call("thaw", param=0),
        call("overwrite"),
        call("step", missing=(1,)),
    )
    optimizers = (PLANTED, replace(PLANTED, client=1))
    play_or_raise(EXEMPLAR, Script(Model(3, PARAMS, optimizers), moves))
    play_or_raise(
        EXEMPLAR, Script(Model(3, PARAMS[:1], (replace(PLANTED, params=(0,)),) * 2), (call("together", by=(0, 1)),))
    )
    play_or_raise(EXEMPLAR, Script(Model(3, PARAMS[:2], (Optimizer((0, 1)),)), (call("step", context="split"),)))


#: What each of these does wrong, and a script that shows it, on a planted optimizer over PARAMS.
WRONG = {
    "a parameter of no optimizer": (
        WritesOnOthers,
        Model(3, (Param(1, (2,)), Param(1, (2,))), (Optimizer((1,)),)),
        (call("step"),),
        "on rank 1: the .grad of parameter 0 on worker1, which no optimizer was given, was set",
    ),
    "two errors": (
        SwapsNames,
        Model(3, PARAMS, (PLANTED,)),
        (call("fail", owner=1, also=(2,)),),
        r"^errors\.several: move 1, .*on rank 0: an error stands under another worker's name",
    ),
    "steps at the same time": (
        TakesNoLock,
        Model(3, PARAMS[:1], (replace(PLANTED, params=(0,)),)),
        (call("together"),),
        "two steps of one parameter were made at the same time on worker1",
    ),
    "a state that is not loaded": (
        LoadsNoState,
        Model(3, PARAMS, (replace(PLANTED, client=2),)),
        (call("step"), call("save"), call("load"), call("step")),
        r"^parity\.trajectory: move 4, .*: on rank 0: parameter 2 on worker0: off by",
    ),
    "a closure that is ignored": (
        IgnoresClosures,
        Model(3, PARAMS, (PLANTED,)),
        (call("step_with_closure", given="closure-by-name"),),
        "step took a closure and evaluated it 0 times",
    ),
}


#: What works besides the step; it goes on as it was after each part.
WORKS: dict[type, tuple[Any, ...]] = {
    Saves: (call("save"), call("step"), call("renew", other_rate=True), call("load"), call("step")),
    TakesClosures: (call("step_with_closure"), call("step_with_closure", given="closure-by-name"), call("step")),
    Tunes: (call("change"), call("step"), call("use", part="param-groups"), call("change", option="weight_decay")),
}


@with_agents
@pytest.mark.world(3)
@pytest.mark.parametrize("build", WORKS, ids=lambda build: build.__name__)
def test_what_a_subject_has_besides_its_step_goes_along(world: World, warm_rpc_agent: Any, build: Any) -> None:
    subject = replace(EXEMPLAR, name=build.__name__, build=build)
    adam = Optimizer((0, 1, 2), "Adam", "everything", given="positional", client=1)
    for optimizer in (adam, PLANTED):
        play_or_raise(subject, Script(Model(3, PARAMS, (optimizer,)), (call("step"), *WORKS[build], call("step"))))


@with_agents
@pytest.mark.world(3)
@pytest.mark.parametrize("fault", sorted(WRONG))
def test_a_script_finds_what_is_wrong_on_all_ranks(world: World, warm_rpc_agent: Any, fault: str) -> None:
    build, model, moves, text = WRONG[fault]
    with pytest.raises(Deviation, match=text):
        play_or_raise(replace(EXEMPLAR, name=fault, build=build), Script(model, moves))


def test_each_feature_belongs_to_cases_that_exist() -> None:
    assert features_without_cases(EXEMPLAR) == []


def test_the_crossings_are_those_in_their_file() -> None:
    kept = [crossing for crossing, full in stored(RpcPlayer) if not full]
    assert kept == crossings(RpcPlayer).scripts, "python -m everyrank.suites.moves"
