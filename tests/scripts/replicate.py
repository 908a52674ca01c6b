"""Scripts of ``replicate``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from everyrank.fixtures.rogues.replicate import ROGUES
from everyrank.suites.moves.script import Call, Script, call
from everyrank.suites.replicate.model import Buffer, Model, Param
from everyrank.suites.replicate.player import ReplicatePlayer
from everyrank.suites.replicate.subjects import DDP, EXEMPLAR, TORCH

from tests.drawn import Row, Scripts

ONE, TABLE = (Param("p0", ()),), (Param("p0", (3, 2), "embedding"),)
BACKWARD, STEP, CLEAR, SET_BUFFERS = call("backward"), call("step"), call("clear"), call("set_buffers")
UNSYNCED, UNUSED = call("backward", synced=False), call("backward", skips=(0,), skipped_by=(0, 1, 2))
COUNTED = {"params": ONE, "buffers": (Buffer("b0", "float64"),)}
BUILDS: dict[str, Any] = {rogue.name: rogue.build for rogue in ROGUES}


def _script(*moves: Call, **model: Any) -> Script:
    return Script(Model(3, **model), moves)


def _is_not_plain(script: Script) -> bool:
    model = script.model
    params = tuple(replace(param, layout="plain", dtype="float64", also="") for param in model.params)
    arguments = {name for each in script.moves for name, _ in each.arguments}
    return (
        model != Model(model.size, params, optimizer=model.optimizer, equal_at_once=False)
        or not {each.move for each in script.moves} <= {"backward", "step", "clear", "give", "put_by"}
        or not arguments <= {"times", "rowless", "set_to_none", "to", "own"}
    )


RIGHT = {
    "buffers": _script(
        *(SET_BUFFERS, UNSYNCED, call("set_buffers", reassigned=True), call("evaluate"), SET_BUFFERS),
        *(call("save"), call("load"), BACKWARD),
        params=ONE,
        buffers=(Buffer("b0", "int64"), Buffer("b1", "bfloat16", gaps=True), Buffer("b2", "bool")),
    ),
    "freeze and replace": _script(
        *(call("freeze", param=0), BACKWARD, call("thaw", param=0), BACKWARD, call("replace", param=0)),
        *(BACKWARD, STEP),
        params=ONE,
        built="small-buckets",
    ),
    "unused": _script(
        *(call("backward", skips=(0,), skipped_by=(1,)), CLEAR, UNSYNCED, CLEAR),
        *(call("backward", skips=(1,), skipped_by=(0, 1, 2)), STEP),
        params=(Param("p0", (2,)), Param("other.p1", (3, 2), "transposed", also="p1_again")),
        asked=True,
    ),
    "no rows of an embedding": _script(
        *(call("backward", skips=(0,), skipped_by=(1,)), call("train_unevenly", batches=(1, 2, 2))),
        params=TABLE,
        asked=True,
    ),
    "ignored": _script(
        *(BACKWARD, STEP, call("save"), call("load")), params=(Param("inner.p0", (2,)), *ONE), built="ignored"
    ),
    "apart": _script(
        *(BACKWARD, STEP, call("give", to=(0,), own=True), BACKWARD),
        params=(Param("inner.p0", (2,)), Param("other.p1", (2,))),
        built="apart",
    ),
    "load": _script(
        *(BACKWARD, STEP, call("save"), STEP, call("load", fresh=True), BACKWARD), params=ONE, optimizer="momentum"
    ),
    "in a group of its own": _script(
        *(call("train_unevenly", batches=(1, 3, 2)), call("train_unevenly", batches=(2, 1, 2), idle=True)),
        *(call("fail", rank=2, during="forward"), call("fail", rank=0, during="between"), call("refuse_device")),
        params=ONE,
    ),
}

ACCUMULATE = _script(
    *(call("backward", synced=False, times=2), BACKWARD, call("clear", set_to_none=False)),
    *(call("backward", forwards=2, packing="nested"), STEP),
    params=TABLE,
)

#: What each rogue that only crossings find does wrong, by a short script.
CROSSED = {
    "sends-no-buffers-after-a-forward-without-sync": _script(UNSYNCED, SET_BUFFERS, BACKWARD, **COUNTED),
    "adds-what-was-cleared-meanwhile": _script(UNSYNCED, CLEAR, BACKWARD),
    "loses-keywords-without-sync": _script(call("backward", synced=False, packing="keyword")),
    "saves-the-buffers-of-the-last-forward": _script(BACKWARD, SET_BUFFERS, call("save"), **COUNTED),
    "takes-replaced-parameters-for-hooked": _script(call("replace", param=0), UNSYNCED, BACKWARD, params=ONE),
    "frees-zero-gradients": _script(BACKWARD, call("clear", set_to_none=False), UNUSED, params=ONE, asked=True),
}

SPOKEN = {"thawed parameters", "replaced parameters", "sparse gradients", "errors"}
SPOKEN |= {"unused parameters whose gradients were cleared"}
UNSPOKEN = {"unused parameters", "tied parameters", "bucket views", "submodules"}

SCRIPTS = Scripts(
    exemplars=(EXEMPLAR,),
    draws=4,
    rows={
        **{name: Row(script) for name, script in RIGHT.items()},
        **{name: Row(script, BUILDS[name], f"move {len(script.moves)}, ") for name, script in CROSSED.items()},
        "always-syncs": Row(
            _script(UNSYNCED, params=ONE),
            BUILDS["always-syncs"],
            r"mean: move 1, backward\(synced=False.*: off by",
            smoke=True,
        ),
        "accumulate": Row(ACCUMULATE, BUILDS["divides-what-is-still-read"], r"move 1, backward\(.*: off by"),
    },
    ledgers=((TORCH, SPOKEN, UNSPOKEN), (DDP, SPOKEN, UNSPOKEN)),
    never=((frozenset(ReplicatePlayer.features), _is_not_plain),),
)
