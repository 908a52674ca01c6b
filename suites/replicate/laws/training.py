"""The laws of ``replicate`` about training: W ranks do what one process does."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from everyrank.fixtures.data import loss
from everyrank.suites.arena.subject_errors import plainly, stayed
from everyrank.suites.compare.comparison import CLOSE_FP64
from everyrank.suites.compare.reference import Plan, whole_batch
from everyrank.suites.moves.player import play_or_raise
from everyrank.suites.moves.script import Call, Script, call
from everyrank.suites.replicate import points
from everyrank.suites.replicate.arena import Arena
from everyrank.suites.replicate.contract import CONTRACT
from everyrank.suites.replicate.law_player import Sync, follow, playing
from everyrank.suites.replicate.model import Model, Param
from everyrank.suites.replicate.points import AMPLIFIED, TrainingPoint

law = CONTRACT.law


def plainest(arena: Arena) -> None:
    """Build on a small model and train it for one step of SGD."""
    plan = Plan(arena.size, steps=1, variant="defaults")
    with plainly("build, of a small model,"):
        module = arena.build(plan.build())
    for name, value in arena.wrappers.parameters(module):
        stayed(name, value.device, "cpu")
    with plainly("forward and backward"):
        loss(module, plan.batch(arena.rank, 1)).backward()
    plan.optimize(module).step()


@law("parity.train", points.training, groups=("TRAINED",))
def train(arena: Arena, point: TrainingPoint) -> None:
    """After each step, W ranks on W parts of a batch have the gradients and parameters of one process.

    With three or more ranks the order of a sum differs and LBFGS amplifies rounding: three steps, within 1e-6.
    """
    amplified = points.amplifies(point.plan.row, point.plan.size)
    follow(arena, point.plan, tolerance=AMPLIFIED if amplified else None)


_Replicated = Literal["several", "nested", "both"]

#: The modules that are replicated, in this order; the whole one has no name.
_REPLICATED: dict[_Replicated, tuple[str, ...]] = {
    "several": ("first", "last"),
    "nested": ("first",),
    "both": ("last", ""),
}


@dataclass(frozen=True, kw_only=True)
class SubmodulePoint(TrainingPoint):
    """A point that fixes which modules are replicated: both submodules, a nested one, or one and then the model."""

    replicated: _Replicated


def _submodules() -> Iterator[SubmodulePoint]:
    replicated: _Replicated
    for replicated in _REPLICATED:
        yield from points.each_size(partial(SubmodulePoint, replicated=replicated), 2, 3, label=replicated)


@law("parity.submodules", _submodules, groups=("TRAINED",))
def submodules(arena: Arena, point: SubmodulePoint) -> None:
    """Several replicated submodules train like one module; a nested one is averaged, and nothing else is."""
    with playing(arena, point.plan, replicated=_REPLICATED[point.replicated]) as player:
        if point.replicated == "nested":
            player.backwards()
        else:
            player.follow()


def _layouts() -> Iterator[TrainingPoint]:
    yield from points.each_size(TrainingPoint, 2, 3, label="transposed")


@law("layout", _layouts, groups=("TRAINED",))
def layout(arena: Arena, point: TrainingPoint) -> None:
    """Parameters that get other strides once they are replicated, as for channels_last, train as in one process."""
    # A product of transposed memory sums in another order.
    with playing(arena, point.plan, tolerance=CLOSE_FP64) as player, warnings.catch_warnings():
        for parameter in player.sides.inside.parameters():
            if parameter.dim() == 2:
                parameter.data = parameter.data.t().contiguous().t()
        # DDP warns of it, and that it is no error. Where warnings are errors, the law would not see the values.
        warnings.filterwarnings("ignore", "Grad strides do not match")
        player.follow()


_OPTIONS: dict[str, dict[str, Any]] = {
    "small-buckets": {"bucket_cap_mb": 0.0001},
    "large-bucket": {"bucket_cap_mb": 100},
    "bucket-view": {"gradient_as_bucket_view": True},
    "static-graph": {"static_graph": True},
    "all": {"bucket_cap_mb": 0.0001, "gradient_as_bucket_view": True, "static_graph": True},
}


@dataclass(frozen=True, kw_only=True)
class OptionPoint(TrainingPoint):
    """A point with options of ``build``, which a subject may refuse."""

    options: Mapping[str, Any]


def _options() -> Iterator[OptionPoint]:
    for name, options in _OPTIONS.items():
        core = (3,) if name in ("small-buckets", "all") else ()
        make = partial(OptionPoint, options=options)
        yield from points.each_size(make, 1, 2, 3, 4, label=name, core=core, steps=4)
    # At most two ranks: their sums are exact in fp32 too.
    make = partial(OptionPoint, options=_OPTIONS["small-buckets"])
    yield from points.each_size(make, 1, 2, label="mixed-dtypes", model="mixed-dtypes", core=(2,))


@law("parity.options", _options, groups=("TRAINED",))
def options(arena: Arena, point: OptionPoint) -> None:
    """Bucket size, gradients as views of buckets and a static graph, if accepted, do not change the result."""
    follow(arena, point.plan, options=point.options)


_MIXED = "mixed-dtypes"


def _script(size: int, param: Param, *calls: Call) -> Script:
    """Return a script whose ranks start alike: it is about nothing else than its moves."""
    return Script(Model(size, (param,), alike=True, equal_at_once=False), calls)


@dataclass(frozen=True, kw_only=True)
class MeanPoint(TrainingPoint):
    """A point with a script that follows the training."""

    script: Script


def _means() -> Iterator[TrainingPoint]:
    for model in ("plain", "equal-shapes", "scalars", "empty", "non-contiguous", "views", "few-rows", "complex"):
        core = (3,) if model in ("plain", "equal-shapes", "complex", "non-contiguous") else ()
        yield from points.plain(1, 2, 3, 4, label=model, model=model, core=core)
    for model, core in (("gaps", ()), ("large", (2,))):
        yield from points.plain(2, label=model, model=model, steps=1, core=core)
    for model in ("sparse-sum", "partly-sparse"):
        core = (3,) if model == "sparse-sum" else ()
        yield from points.plain(2, 3, 4, label=model, model=model, variant="lr", core=core)
    # At most two ranks, as for the options: but no subject has to take an option for these.
    yield from points.plain(1, 2, label=_MIXED, model=_MIXED)
    halves = _script(2, Param("halves", (3, 2), dtype="float16", huge=True), call("backward"))
    yield from points.each_size(partial(MeanPoint, script=halves), 2, label="halves", core=(2,))


@law("mean", _means, groups=("TRAINED",))
def mean(arena: Arena, point: TrainingPoint) -> None:
    """Gradients are averaged once, by the number of ranks: in each step they are those of the whole batch.

    Gradients in float16 have a mean also if their sum is too large for it.
    """
    # In fp32 the sum of the parts is another one than that of the whole.
    whole: dict[str, Any] = {"reference": whole_batch, "tolerance": CLOSE_FP64}
    follow(arena, point.plan, **({} if point.plan.model == _MIXED else whole))
    if isinstance(point, MeanPoint):
        play_or_raise(arena.subject, point.script)


@dataclass(frozen=True, kw_only=True)
class AccumulationPoint(TrainingPoint):
    """A point that fixes which of several backwards are synced; ``later``: a batch before, which does not count."""

    sync: Sync = "last"
    later: bool = False
    script: Script | None = None
    """What is done in place of a training."""
    options: Mapping[str, Any] = field(default_factory=dict)


#: Backwards before which, or in which, the user does something.
_UNUSUAL = {
    "raised": (call("backward"), call("raise_in_backward"), call("backward")),
    "hooked": (call("hook", param=0), call("backward"), call("hook", param=0), call("backward")),
}


def _accumulations() -> Iterator[AccumulationPoint]:
    for parts in (2, 3, 5):
        core = (3,) if parts == 3 else ()
        yield from points.each_size(AccumulationPoint, 1, 2, 3, label=f"parts{parts}", core=core, parts=parts)
    # Options that learn from the first backward or keep gradients in their own memory, with the first synced or not.
    for name in ("bucket-view", "static-graph"):
        for label in ("unsynced", "later"):
            core = (2,) if label == "unsynced" else ()
            make = partial(AccumulationPoint, later=label == "later", options=_OPTIONS[name])
            yield from points.each_size(make, 2, label=f"{name}-{label}", core=core, parts=2, steps=3)
    yield from points.each_size(
        AccumulationPoint, 2, label="sparse", model="sparse-sum", core=(2,), parts=2, variant="lr"
    )
    yield from points.each_size(partial(AccumulationPoint, sync="all"), 2, 3, label="synced", parts=3)
    yield from points.each_size(partial(AccumulationPoint, sync="none"), 2, 3, label="local", parts=2)
    for label, calls in _UNUSUAL.items():
        make = partial(AccumulationPoint, script=_script(2, Param("param", (3, 2)), *calls))
        yield from points.each_size(make, 2, label=label, core=(2,))
    forwards_first = partial(AccumulationPoint, sync="after-all")
    yield from points.each_size(forwards_first, 2, 3, label="forwards-first", core=(2,), parts=2)


@law("accumulate", _accumulations, groups=("TRAINED",))
def accumulate(arena: Arena, point: AccumulationPoint) -> None:
    """k microbatches without sync, then one with sync, equal one batch; so do k with sync. Only sync averages.

    This also holds with a static graph and with gradients as views of buckets, whether or not the first is synced,
    and if all forwards come before the first backward. A backward that raises leaves nothing behind, and a hook of
    the user's gets the gradient of its rank.
    """
    if point.script is not None:
        play_or_raise(arena.subject, point.script)
        return
    alone = point.sync == "none"
    whole: dict[str, Any] = {} if alone else {"reference": whole_batch, "tolerance": CLOSE_FP64}
    with playing(arena, point.plan, options=point.options, **whole) as player:
        if point.later:
            player.backward()
            player.clear()
        if alone:
            player.backwards("none")
        else:
            player.follow(sync=point.sync)


@law("clip", lambda: points.plain(1, 2, 3, 4, core=(3,), clip=0.05), groups=("TRAINED",))
def clip(arena: Arena, point: TrainingPoint) -> None:
    """Clipping to a norm has the same effect as in one process."""
    follow(arena, point.plan)


@law("schedule", lambda: points.plain(1, 2, 3, 4, core=(3,), steps=4, schedule=True), groups=("TRAINED",))
def schedule(arena: Arena, point: TrainingPoint) -> None:
    """A schedule of the learning rate has the same effect as in one process."""
    follow(arena, point.plan)


#: The ranks that do not use the branch; negative numbers count from the end.
_SKIPS = {"first-rank": {0}, "last-rank": {-1}, "all-but-one": {0, 2, 3}, "all-ranks": {0, 1, 2, 3}}


@dataclass(frozen=True, kw_only=True)
class UnusedPoint(TrainingPoint):
    """A point that fixes whether all ranks used the branch before, without sync, and cleared the gradients."""

    cleared: bool = False


def _unused() -> Iterator[UnusedPoint]:
    each_size = partial(points.each_size, UnusedPoint)
    yield from each_size(2, 3, 4, label="everywhere", model="unused", steps=3)
    for label, ranks in _SKIPS.items():
        core = (3,) if label in ("last-rank", "all-but-one") else ()
        for size in (2, 3, 4):
            skips = frozenset(rank % size for rank in ranks)
            yield from each_size(size, label=label, model="optional", skips=skips, steps=3, core=core)
    all_ranks = frozenset(range(4))
    yield from each_size(2, 3, label="later", model="optional", skips=all_ranks, skips_from=2, steps=3)
    cleared = partial(UnusedPoint, cleared=True)
    yield from points.each_size(cleared, 2, 3, label="cleared", model="optional", skips=all_ranks)


@law("unused", _unused, groups=("TRAINED",))
def unused(arena: Arena, point: UnusedPoint) -> None:
    """A parameter that no rank uses keeps the gradient None; if some use it, all get the mean, zero for the others.

    That it was used before its gradient was cleared does not count. A subject that must be asked for this takes
    DDP's ``find_unused_parameters``; all others are built without it.
    """
    with playing(arena, point.plan, asked=True) as player:
        if point.cleared:
            player.sides.weight = 0.0  # about None alone, not about sums
            player.backward(synced=False)
            player.sides.weight = 1.0
            player.clear()
        player.follow()


def _frozen() -> Iterator[TrainingPoint]:
    yield from points.plain(2, 3, label="stays", model="frozen", steps=3)
    yield from points.plain(2, 3, label="thawed", model="frozen", steps=3, thaw=2)


@law("frozen", _frozen, groups=("TRAINED",))
def frozen(arena: Arena, point: TrainingPoint) -> None:
    """A frozen parameter has no gradient and does not change; once unfrozen, it is averaged like the others."""
    with playing(arena, point.plan) as player:
        if point.plan.thaw:
            player.follow(point.plan.thaw - 1)
            for param in sorted(player.sides.frozen):
                player.thaw(param)
        player.follow()


@law("tied", lambda: points.plain(2, 3, model="tied", steps=3), groups=("TRAINED",))
def tied(arena: Arena, point: TrainingPoint) -> None:
    """A parameter with two names is averaged once."""
    follow(arena, point.plan)


@dataclass(frozen=True, kw_only=True)
class RewrapPoint(TrainingPoint):
    """A point that fixes the step before which a parameter is replaced."""

    step: int


def _rewraps() -> Iterator[RewrapPoint]:
    for step in (1, 2):
        label = "before-training" if step == 1 else "while-training"
        core = (3,) if step == 2 else ()
        make = partial(RewrapPoint, step=step)
        yield from points.each_size(make, 2, 3, label=label, steps=3, variant="lr", core=core)


@law("rewrap", _rewraps, groups=("TRAINED",))
def rewrap(arena: Arena, point: RewrapPoint) -> None:
    """A parameter replaced after wrapping is averaged like the others, or is refused with an error."""
    with playing(arena, point.plan) as player:
        player.follow(point.step - 1)
        player.replace([*player.sides.values].index("last.weight"))
        player.follow()
