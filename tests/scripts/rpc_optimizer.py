"""Scripts of ``rpc-optimizer``: a client makes each step, on parameters that all ranks own and compare."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from everyrank.fixtures.rogues.rpc_optimizer import WritesOnOthers
from everyrank.fixtures.rogues.rpc_optimizer.crossings import Tunes
from everyrank.fixtures.rogues.rpc_optimizer.errors import SwapsNames, TakesNoLock
from everyrank.fixtures.rogues.rpc_optimizer.steps import DoublesSecondStep
from everyrank.fixtures.rogues.rpc_optimizer.surface import IgnoresClosures, LoadsNoState, Saves, TakesClosures
from everyrank.suites.arena import surface
from everyrank.suites.moves.script import Call, Script, call
from everyrank.suites.rpc_optimizer.model import Model, Optimizer, Param
from everyrank.suites.rpc_optimizer.player import RpcPlayer
from everyrank.suites.rpc_optimizer.subjects import EAGER, EXEMPLAR, SCRIPTED

from tests.drawn import Row, Scripts

#: One parameter on each worker, and one that worker1 has twice.
PARAMS = (Param(1, (2,)), Param(2, (2, 3), layout="transposed"), Param(0, ()), Param(1, (2,), same_as=0))
PLANTED = Optimizer((0, 1, 2), variant="momentum", own="planted")
ALONE = replace(PLANTED, params=(0,))
ADAM = Optimizer((0, 1, 2), "Adam", "everything", given="positional", client=1)
STEP = call("step")

#: A printed test imports its subject by name.
DOUBLES = replace(EXEMPLAR, name="doubles", build=DoublesSecondStep)


def _script(*moves: Call, params: tuple[Param, ...] = PARAMS, optimizers: Any = (PLANTED,)) -> Script:
    return Script(Model(3, params, optimizers), moves)


def _is_not_for_eager(script: Script) -> bool:
    model = script.model
    return (
        any("missing" in dict(each.arguments) for each in script.moves)
        or {model.tensor(number) for number in range(len(model.params))} != model.given
    )


EVERY_MOVE = _script(
    *(STEP, call("step", by=(0, 0), context="again"), call("step", context="resumed")),
    *(call("step", missing=(0, 1, 2, 3)), call("hold"), call("step", by=(1,)), call("step_held"), call("release")),
    *(call("refuse", context="unknown"), call("refuse", context="closed"), call("fail", owner=1, also=(2,))),
    *(call("fail", owner=2, foreign=True), call("wait", owner=0, by=1), call("fail_build", owner=2)),
    *(call("invalid"), call("invalid", name="non-leaf"), call("invalid", optimizer="Adam", name="lr-negative")),
    *(call("renew"), call("another", name="Adam", variant="everything", given="positional")),
    *(call("use", part=part) for part in surface.PARTS),
    *(call("step_with_closure"), call("save"), call("load"), call("change"), call("freeze", param=0)),
    *(call("leave", param=1), STEP, call("thaw", param=0), call("overwrite"), call("step", missing=(1,))),
    optimizers=(PLANTED, replace(PLANTED, client=1)),
)

#: What each of these does wrong, and a script that shows it.
WRONG: dict[str, tuple[Any, Script, str]] = {
    "a parameter of no optimizer": (
        WritesOnOthers,
        _script(STEP, params=(Param(1, (2,)), Param(1, (2,))), optimizers=(Optimizer((1,)),)),
        "on rank 1: the .grad of parameter 0 on worker1, which no optimizer was given, was set",
    ),
    "two errors": (
        SwapsNames,
        _script(call("fail", owner=1, also=(2,))),
        r"^errors\.several: move 1, .*on rank 0: an error stands under another worker's name",
    ),
    "steps at the same time": (
        TakesNoLock,
        _script(call("together"), params=PARAMS[:1], optimizers=(ALONE,)),
        "two steps were made at the same time on worker1",
    ),
    "a state that is not loaded": (
        LoadsNoState,
        _script(STEP, call("save"), call("load"), STEP, optimizers=(replace(PLANTED, client=2),)),
        r"^parity\.trajectory: move 4, .*: on rank 0: parameter 2 on worker0: off by",
    ),
    "a closure that is ignored": (
        IgnoresClosures,
        _script(call("step_with_closure", given="closure-by-name")),
        "step took a closure and evaluated it 0 times",
    ),
}

#: What works besides the step; it goes on as it was after each part.
WORKS: dict[Any, tuple[Call, ...]] = {
    Saves: (call("save"), STEP, call("renew", other_rate=True), call("load"), STEP),
    TakesClosures: (call("step_with_closure"), call("step_with_closure", given="closure-by-name"), STEP),
    Tunes: (call("change"), STEP, call("use", part="param-groups"), call("change", option="weight_decay")),
}

SCRIPTS = Scripts(
    exemplars=(EXEMPLAR,),
    draws=10,
    rows={
        "every move": Row(EVERY_MOVE, smoke=True),
        "two clients": Row(_script(call("together", by=(0, 1)), params=PARAMS[:1], optimizers=(ALONE, ALONE))),
        "a context that is split": Row(
            _script(call("step", context="split"), params=PARAMS[:2], optimizers=(Optimizer((0, 1)),))
        ),
        **{name: Row(script, build, text) for name, (build, script, text) in WRONG.items()},
        **{
            f"{build.__name__}, {optimizer.name}": Row(_script(STEP, *moves, STEP, optimizers=(optimizer,)), build)
            for build, moves in WORKS.items()
            for optimizer in (ADAM, PLANTED)
        },
    },
    ledgers=(
        (EXEMPLAR, set(), set(RpcPlayer.features)),
        (
            EAGER,
            {"missing gradients", "empty contexts", "parameters of no optimizer", "errors in several steps"},
            {"contexts beside each other"},
        ),
        (
            SCRIPTED,
            {"steps at the same time", "SGD defaults", "Rprop lr", "Adagrad with missing gradients", "bf16"},
            set(),
        ),
    ),
    never=((EAGER, _is_not_for_eager),),
)
