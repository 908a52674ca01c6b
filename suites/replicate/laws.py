"""The laws of ``replicate`` about training: W ranks do what one process does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from everyrank.fixtures.data import loss
from everyrank.suites.acts import plainly, stayed, subject_acts
from everyrank.suites.compare import CLOSE_FP64
from everyrank.suites.contract import Contract, Point
from everyrank.suites.errors import NotApplicable
from everyrank.suites.reference import Plan, order_matched, whole_batch
from everyrank.suites.replicate import points
from everyrank.suites.replicate.arena import (
    LOCAL_BUFFERS,
    Arena,
    arena,
    unsynced,
)
from torch import nn

CONTRACT = Contract("replicate", arena, fixtures=("process_group",), choices=(LOCAL_BUFFERS,))
law = CONTRACT.law


def _plainest(place: Arena) -> None:
    """A small model, one step of SGD."""
    plan = Plan(place.size, steps=1, variant="defaults")
    with plainly("build, of a small model,"):
        module = place.build(plan.build())
    for name, value in place.values(module).items():
        stayed(name, value.device, "cpu")
    with plainly("forward and backward"):
        loss(module, plan.batch(place.rank, 1)).backward()
    plan.optimize(module).step()


CONTRACT.plainest = _plainest


@law("parity.train", points.training)
def train(place: Arena, point: Point) -> None:
    """After each step, W ranks on W parts of a batch have the gradients and parameters of one process.

    With three ranks and more, where the order of a sum differs, LBFGS amplifies rounding: three steps, within 1e-6.
    """
    plan: Plan = point.values["plan"]
    place.follow(plan, place.built(plan), tolerance=point.values.get("tolerance")).verdict()


_MANNERS = ("several", "nested", "both")


def _submodules() -> Iterator[Point]:
    for manner in _MANNERS:
        yield from points.plain(2, 3, label=manner, core=(3,), more={"manner": manner})


@law("parity.submodules", _submodules)
def submodules(place: Arena, point: Point) -> None:
    """Applied to several submodules, all of them train as one; to a nested one, it and nothing else is averaged."""
    plan: Plan = point.values["plan"]
    module = plan.build()
    first, last = module.get_submodule("first"), module.get_submodule("last")
    with subject_acts():
        if point.values["manner"] == "several":
            module.add_module("first", place.build(first))
            module.add_module("last", place.build(last))
        elif point.values["manner"] == "both":
            module.add_module("last", place.build(last))
            module = place.build(module)
    if point.values["manner"] != "nested":
        place.follow(plan, module).verdict()
        return
    innermost = nn.Sequential(first)
    nest = nn.Sequential(nn.Sequential(innermost, nn.Tanh()), last)
    with subject_acts():
        innermost[0] = place.build(first)
    module.add_module("first", innermost[0])
    batch = plan.batch(place.rank, 1)
    with subject_acts():
        (nest(batch.inputs) - batch.targets).square().mean().backward()
    _only(place, plan, place.gradients(module), averaged="first")


def _only(place: Arena, plan: Plan, found: Any, averaged: str) -> None:
    """The gradients of one module are the mean, all others are this rank's own."""
    together = order_matched(plan).steps[0].gradients
    alone = own_gradients(plan, place.rank)
    comparison = place.comparison()
    expected = {name: (together if name.startswith(f"{averaged}.") else alone)[name] for name in found}
    place.compare_gradients(comparison, 1, found, expected)
    comparison.verdict()


def own_gradients(plan: Plan, rank: int) -> dict[str, Any]:
    """The gradients that a rank has before any mean."""
    module = plan.build()
    batch = plan.batch(rank, 1)
    (module(batch.inputs) - batch.targets).square().mean().backward()
    return {name: value.grad for name, value in module.named_parameters()}


_OPTIONS: dict[str, dict[str, Any]] = {
    "small-buckets": {"bucket_cap_mb": 0.0001},
    "large-bucket": {"bucket_cap_mb": 100},
    "bucket-view": {"gradient_as_bucket_view": True},
    "static-graph": {"static_graph": True},
    "all": {"bucket_cap_mb": 0.0001, "gradient_as_bucket_view": True, "static_graph": True},
}


def _options() -> Iterator[Point]:
    for name, options in _OPTIONS.items():
        core = (3,) if name in ("small-buckets", "all") else ()
        yield from points.plain(1, 2, 3, 4, label=name, core=core, steps=4, more={"options": options})
    # With two ranks, where fp32 is exact too.
    mixed = {"options": _OPTIONS["small-buckets"]}
    yield from points.plain(1, 2, label="mixed-dtypes", model="mixed-dtypes", core=(2,), more=mixed)


@law("parity.options", _options)
def options(place: Arena, point: Point) -> None:
    """Bucket size, gradients as views of buckets and a static graph make no difference to the result, if taken."""
    plan: Plan = point.values["plan"]
    place.follow(plan, place.offered(plan, **point.values["options"])).verdict()


def _means() -> Iterator[Point]:
    for model in ("plain", "equal-shapes", "scalars", "empty", "non-contiguous", "views", "few-rows", "complex"):
        core = (3,) if model in ("plain", "equal-shapes", "complex", "non-contiguous") else ()
        yield from points.plain(1, 2, 3, 4, label=model, model=model, core=core)
    for model, core in (("gaps", ()), ("large", (2,))):
        yield from points.plain(2, label=model, model=model, steps=1, core=core)
    for model in ("sparse-sum", "partly-sparse"):
        core = (3,) if model == "sparse-sum" else ()
        yield from points.plain(2, 3, 4, label=model, model=model, variant="lr", core=core)


@law("mean", _means)
def mean(place: Arena, point: Point) -> None:
    """Gradients are averaged once, by the number of ranks: they are those of the whole batch, in each step."""
    plan: Plan = point.values["plan"]
    place.follow(plan, place.built(plan), whole_batch(plan), CLOSE_FP64).verdict()


def _accumulations() -> Iterator[Point]:
    for parts in (2, 3, 5):
        core = (3,) if parts == 3 else ()
        yield from points.plain(1, 2, 3, label=f"parts{parts}", core=core, parts=parts, more={"how": "unsynced"})
    # What learns from its first backward, or keeps gradients in memory of its own: with that one synced, or not.
    for name in ("bucket-view", "static-graph"):
        for how in ("unsynced", "later"):
            core = (2,) if how == "unsynced" else ()
            more = {"how": how, "options": _OPTIONS[name]}
            yield from points.plain(2, label=f"{name}-{how}", core=core, parts=2, steps=3, more=more)
    yield from points.plain(
        2, label="sparse", model="sparse-sum", core=(2,), parts=2, variant="lr", more={"how": "unsynced"}
    )
    yield from points.plain(2, 3, label="synced", core=(3,), parts=3, more={"how": "synced"})
    yield from points.plain(2, 3, label="local", core=(3,), parts=2, more={"how": "local"})


@law("accumulate", _accumulations)
def accumulate(place: Arena, point: Point) -> None:
    """k microbatches without sync, then one with, equal one batch; so do k with sync. Without, none is averaged.

    It is the same with a static graph and with gradients as views of buckets, whether or not the first is synced.
    """
    plan: Plan = point.values["plan"]
    options = point.values.get("options")
    module = place.offered(plan, **options) if options else place.built(plan)
    if point.values["how"] == "later":
        with subject_acts():
            loss(module, plan.batch(place.rank, 1)).backward()
        place.inside(module).zero_grad()
    if point.values["how"] == "local":
        batch = plan.batch(place.rank, 1)
        with unsynced(module), subject_acts():
            (module(batch.inputs) - batch.targets).square().mean().backward()
        comparison = place.comparison()
        place.compare_gradients(comparison, 1, place.gradients(module), own_gradients(plan, place.rank))
    else:
        synced = point.values["how"] == "synced"
        comparison = place.follow(plan, module, whole_batch(plan), CLOSE_FP64, synced)
    comparison.verdict()


@law("clip", lambda: points.plain(1, 2, 3, 4, core=(3,), clip=0.05))
def clip(place: Arena, point: Point) -> None:
    """Clipping to a norm has the effect that it has in one process."""
    place.conforms(point.values["plan"])


@law("schedule", lambda: points.plain(1, 2, 3, 4, core=(3,), steps=4, schedule=True))
def schedule(place: Arena, point: Point) -> None:
    """A schedule of the learning rate has the effect that it has in one process."""
    place.conforms(point.values["plan"])


#: Which ranks go without the branch; counted from the end where negative.
_SKIPS = {"first-rank": {0}, "last-rank": {-1}, "all-but-one": {0, 2, 3}, "all-ranks": {0, 1, 2, 3}}


def _unused() -> Iterator[Point]:
    yield from points.plain(2, 3, 4, label="everywhere", model="unused", steps=3)
    for label, ranks in _SKIPS.items():
        core = (3,) if label in ("last-rank", "all-but-one") else ()
        for size in (2, 3, 4):
            skips = frozenset(rank % size for rank in ranks)
            yield from points.plain(size, label=label, model="optional", skips=skips, steps=3, core=core)
    everybody = frozenset(range(4))
    yield from points.plain(2, 3, label="later", model="optional", skips=everybody, skips_from=2, steps=3)


@law("unused", _unused)
def unused(place: Arena, point: Point) -> None:
    """Unused everywhere, its gradient stays None; unused on one rank, it counts as zero there, and gets the mean.

    A subject that must be asked for this takes DDP's ``find_unused_parameters``; all others are built without it.
    """
    plan: Plan = point.values["plan"]
    try:
        module = place.offered(plan, find_unused_parameters=True)
    except NotApplicable:
        module = place.built(plan)
    place.follow(plan, module).verdict()


def _frozen() -> Iterator[Point]:
    yield from points.plain(2, 3, label="stays", model="frozen", steps=3)
    yield from points.plain(2, 3, label="thawed", model="frozen", steps=3, thaw=2)


@law("frozen", _frozen)
def frozen(place: Arena, point: Point) -> None:
    """A frozen parameter has no gradient and stays; unfrozen later, it is averaged as the others are."""
    place.conforms(point.values["plan"])


@law("tied", lambda: points.plain(2, 3, model="tied", steps=3))
def tied(place: Arena, point: Point) -> None:
    """A parameter with two names is averaged once."""
    place.conforms(point.values["plan"])


def _rewraps() -> Iterator[Point]:
    for when in (1, 2):
        label = "before-training" if when == 1 else "while-training"
        core = (3,) if when == 2 else ()
        yield from points.plain(2, 3, label=label, steps=3, variant="lr", core=core, more={"when": when})


@law("rewrap", _rewraps)
def rewrap(place: Arena, point: Point) -> None:
    """A parameter replaced after wrapping is averaged as the others are, or is refused with an error."""
    plan: Plan = point.values["plan"]
    module = place.built(plan)
    reference = order_matched(plan)
    comparison = place.comparison(reference)
    for step, expected in enumerate(reference.steps, 1):
        if step == point.values["when"]:
            last = place.inside(module).get_submodule("last")
            last.register_parameter("weight", nn.Parameter(last.get_parameter("weight").detach().clone()))
        optimizer = plan.optimize(module)  # of the parameters that are there now; this variant keeps no state
        try:
            found = place.step(plan, module, optimizer, step)
        except Exception:
            if step < point.values["when"]:
                raise
            break  # refused; but not after a step that went wrong
        place.compare_gradients(comparison, step, found, expected.gradients)
        comparison.step(step, place.values(module), expected.values)
        place.load(module, expected.values)
    comparison.verdict()
