"""Scripts of ``trainer``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from everyrank.fixtures.exemplars.trainer import DataParallel
from everyrank.fixtures.rogues.trainer import ROGUES
from everyrank.suites.moves.script import Call, Script, call
from everyrank.suites.trainer.model import Group, Model, Param
from everyrank.suites.trainer.player import TrainerPlayer
from everyrank.suites.trainer.subjects.ddp import BUCKET_VIEWS, DDP, STATIC_GRAPH, ZERO
from everyrank.suites.trainer.subjects.exemplars import DATA_PARALLEL, SHARDED
from everyrank.suites.trainer.subjects.pipelines import GPIPE
from everyrank.suites.trainer.subjects.sharded import FSDP2
from everyrank.suites.trainer.subjects.tensor_parallel import TENSOR_PARALLEL

from tests.drawn import Row, Scripts

ONE, TWO = (Param("p0", (2,)),), (Param("p0", (2,)), Param("p1", (2,)))
STEP, SAVE = call("step"), call("save")
BUILDS: dict[str, Any] = {rogue.name: rogue.build for rogue in ROGUES}


def _script(*moves: Call, **model: Any) -> Script:
    return Script(Model(3, **model), moves)


def _is_more_than_sgd(script: Script) -> bool:
    model = script.model
    params = tuple(replace(param, layout="plain", dtype="float64", frozen=False, also="") for param in model.params)
    arguments = {name for each in script.moves for name, _ in each.arguments}
    plain = Model(model.size, model.layers, params, variant=model.variant, losses=False, options=False)
    return model != plain or {each.move for each in script.moves} != {"step"} or not arguments <= {"times"}


class Uneven(DataParallel):
    """Another start on one rank, which the others do not see."""

    def send_start(self) -> None:
        super().send_start()
        if self.rank == 1:
            next(iter(self.named().values())).data.add_(2.0**-52)


#: A model with parameters of all kinds.
PARAMS = (
    Param("inner.p0", (2, 4), "transposed", also="p0_again"),
    Param("p1", (), also="other.p1_again"),
    Param("p2", (3,), "gaps"),
    Param("p3", (0, 2)),
    Param("p4", (2,), unused=True),
    Param("p5", (2,), zero=True),
)

RIGHT = {
    "a step": _script(
        *(call("step", times=4, parts=3, rows=(1, 5, 2)), call("step", max_norm=0.05, waits=True)),
        call("step", spoiled="inf", by=1),
        layers=(3, 5),
        params=ONE,
    ),
    "models": _script(
        *(STEP, call("step", skips=(2,), skipped_by=(1,)), call("step", skips=(1, 2), skipped_by=(0, 1, 2))),
        *(call("step", skips=(0,)), call("step", max_norm=0.5)),
        params=PARAMS,
        buffer=True,
        own_values=True,
        own_buffer=True,
        optimizer="Adam",
        variant="everything",
    ),
    "coarse dtypes": _script(
        call("step", times=2), STEP, params=(Param("p0", (2,), dtype="float32"), Param("p1", (3,)))
    ),
    "complex": _script(call("step", times=2), params=(Param("p0", (2,), dtype="complex128"),), optimizer="Adam"),
    "sparse": _script(
        *(call("step", parts=2), call("step", skips=(0,), skipped_by=(1,))),
        params=(Param("p0", (3, 2), "embedding"), Param("p1", (2,))),
    ),
    "closures": _script(STEP, call("step", parts=2), call("refuse"), optimizer="LBFGS", variant="everything"),
    "orders": _script(
        *(STEP, SAVE, call("load", fresh=True, reordered=True, of_first=True), STEP),
        call("reshard", before=2, after=3),
        params=(Param("inner.p0", (2,)), Param("p1", (2,))),
        optimizer="Adam",
        own_values=True,
        reordered=(1,),
    ),
    "groups": _script(
        *(STEP, call("add_group", count=1, lr=0.25, weight_decay=0.5), STEP, SAVE, call("load", fresh=True), STEP),
        params=(*TWO, Param("p2", (3,))),
        variant="momentum",
        groups=(Group(1), Group(1, lr=0.5)),
    ),
    "options": _script(
        *(SAVE, call("change"), STEP, SAVE, call("schedule", gamma=0.5), call("step", times=2), call("load")),
        *(call("change", option="momentum", factor=2.0, group=0), STEP, call("change", option="weight_decay"), STEP),
        call("refuse", invalid=1),
        params=ONE,
        variant="everything",
    ),
    "frozen": _script(
        *(STEP, call("freeze", param=0), STEP, SAVE, call("thaw", param=1), STEP, call("load"), STEP),
        params=(*ONE, Param("p1", (2,), frozen=True)),
        optimizer="Adam",
    ),
    "apart": _script(
        *(call("fail", rank=1), call("reshard", before=3, after=2)),
        call("load_wrong", part="model", mutation="missing"),
        call("load_wrong", part="optimizer", mutation="misshapen"),
        call("load_wrong", part="optimizer", mutation="extra"),
        params=(Param("p0", (), frozen=True), Param("p1", (2, 2))),
    ),
    # An error of fp32 may reach the other parameters on other ranks: the batches of the seventh move show it.
    "an error of fp32": _script(
        *([SAVE] * 6),
        call("reshard", before=3, after=2),
        params=(Param("p0", (1, 2, 3), dtype="float32"), Param("p1", (2,), dtype="float32")),
        layers=(2,),
        variant="everything",
        reordered=(0,),
    ),
}

#: What each rogue does wrong, by a script that shows it.
WRONG = {
    "none-is-zero": (_script(STEP, params=(Param("p0", (2,), unused=True),), variant="everything"), "p0: off by"),
    "returns-its-own-loss": (_script(STEP), "the loss: off by"),
    "reduces-in-its-own-order": (_script(STEP, params=TWO, reordered=(2,)), "off by"),
    "loads-no-options": (_script(STEP, call("change"), SAVE, call("load", fresh=True), STEP), "lr of group 0 is"),
    "takes-wrong-arguments": (_script(call("refuse")), "raised nothing instead of"),
    "names-the-wrong-rank": (_script(call("fail", rank=2)), "the error does not name rank 2"),
    "loads-what-fits": (
        _script(call("load_wrong", part="model", mutation="extra")),
        "a state with an extra entry",
    ),
    "changes-after-returning": (_script(call("step", times=4, waits=True)), "some time after step 4"),
    "one-bucket-for-all-dtypes": (_script(STEP, params=(*ONE, Param("p1", (2,), dtype="float32"))), "off by"),
    "looks-at-its-own-loss": (
        _script(STEP, STEP, layers=(5, 3), optimizer="LBFGS", variant="everything"),
        "off by|has other values|Connection closed|Timed out",
    ),
}

SOME_RANKS = {"parameters that some ranks use", "microbatches of some ranks"}
NOT_LAYERS = {"branches", "parameters of no layer", "parameters with gaps", "transposed parameters"}

SCRIPTS = Scripts(
    exemplars=(DATA_PARALLEL, SHARDED),
    draws=3,
    rows={
        **{name: Row(script) for name, script in RIGHT.items()},
        **{name: Row(script, BUILDS[name], text) for name, (script, text) in WRONG.items()},
        "ranks that differ by one bit": Row(_script(STEP), Uneven, "rank 1 has other values", smoke=True),
    },
    ledgers=(
        (DATA_PARALLEL, set(), NOT_LAYERS),
        (
            DDP,
            {"sparse gradients", "thawed parameters", "errors"},
            {"Adam", "states", "states of NAdam", "clipping", "own values", "model states, missing"},
        ),
        (STATIC_GRAPH, SOME_RANKS, set()),
        # It runs on three ranks only, and the law about wrong states has points of two.
        (BUCKET_VIEWS, {"model states, missing"}, {"parameters that some ranks use"}),
        (FSDP2, {"own values", "own buffers", "orders of registration", *SOME_RANKS}, set()),
        (GPIPE, {"branches"}, set()),
        (TENSOR_PARALLEL, {"parameters of no layer"}, set()),
        (ZERO, {"parameters with gaps"}, NOT_LAYERS - {"parameters with gaps"}),
    ),
    never=((frozenset(TrainerPlayer.features) - {"SGD"}, _is_more_than_sgd),),
)
