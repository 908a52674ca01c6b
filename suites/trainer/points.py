"""The points of the laws of ``trainer``: optimizers, variants, world sizes, dtypes and models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from everyrank.fixtures.optimizers import Row, Variant, every
from everyrank.suites.compare.reference import Plan
from everyrank.suites.engine.contract import Point

#: Variants left out: step() under autograd writes leaves in place, and CPU tensors have no kernel of that kind.
EXCLUDED = ("cuda", "non-leaf")

SIZES = (1, 2, 3, 4)

DTYPES = {"fp64": torch.float64, "fp32": torch.float32}

#: Where the variants of an optimizer are trained in turn, besides on two ranks in fp64.
_TURNS = ((3, "fp32"), (4, "fp64"), (2, "fp32"), (3, "fp64"), (4, "fp32"), (2, "fp64"))

#: The core points, on which rogues are tried: one that shows a wrong scale, and one that hides it.
_CORE = {("SGD", "everything", 3), ("Adam", "everything", 3), ("LBFGS", "everything", 3)}


@dataclass(frozen=True, kw_only=True)
class TrainingPoint(Point):
    """A point with a training, which the subject does on all ranks and the reference in one process."""

    plan: Plan


T = TypeVar("T", bound=TrainingPoint)


def training() -> Iterator[TrainingPoint]:
    """Yield each optimizer that takes dense gradients of one group and needs no closure.

    Each without arguments, at every world size, in fp64 and fp32: for 10 steps on two ranks, and for 6 on others,
    since RAdam changes its rule in the sixth. Each variant on two ranks, and at another size or in another dtype, in
    turn.
    """
    for row, variant in every(EXCLUDED):
        if row.needs & {"closure", "sparse"} or variant.group_arguments:
            continue
        if variant.name == "defaults":
            for size in SIZES:
                yield from (_optimizer_point(row, variant, size, 10 if size == 2 else 6, dtype) for dtype in DTYPES)
            continue
        turn = _TURNS[row.variants.index(variant) % len(_TURNS)]
        further = {(3, "fp64")} if variant.name == "everything" else set()
        for size, dtype in sorted({(2, "fp64"), turn, *further}):
            yield _optimizer_point(row, variant, size, 3, dtype)


def closures() -> Iterator[TrainingPoint]:
    """Yield the optimizers that compute the loss again, each variant on two ranks."""
    for row, variant in every(EXCLUDED):
        if "closure" in row.needs:
            sizes = {"defaults": SIZES, "everything": (2, 3)}.get(variant.name, (2,))
            # Two steps: LBFGS amplifies the order of a sum, and the third step differs between processors.
            yield from (_optimizer_point(row, variant, size, 2, "fp64") for size in sizes)


def sparse() -> Iterator[TrainingPoint]:
    """Yield each optimizer that takes sparse gradients, on models all or some of whose gradients are sparse."""
    for row, variant in every(EXCLUDED):
        if "closure" in row.needs or "sparse" not in row.needs | row.takes or "sparse" in variant.refuses:
            continue
        if "sparse" in row.needs or variant.name == "lr":
            models = ("sparse-embedding",) if "sparse" in row.needs else ("sparse-sum", "partly-sparse")
            for model in models:
                for size in (2, 3) if variant.name in ("lr", "defaults") else (2,):
                    core = (row.name, model, size) == ("SGD", "partly-sparse", 3)
                    yield _optimizer_point(row, variant, size, 3, "fp64", model, core)


def grouped() -> Iterator[TrainingPoint]:
    """Yield the variants with parameter groups."""
    for row, variant in every(EXCLUDED):
        if variant.group_arguments and not row.needs & {"closure", "sparse"}:
            core = (row.name, variant.name) == ("SGD", "groups")
            yield _optimizer_point(row, variant, 3 if core else 2, 3, "fp64", core=core)


def _optimizer_point(
    row: Row, variant: Variant, size: int, steps: int, dtype: str, model: str = "", core: bool | None = None
) -> TrainingPoint:
    plan = Plan(size, steps, model or row.model, row.name, variant.name, DTYPES[dtype])
    label = "-".join(filter(None, (row.name, variant.name, model, "" if dtype == "fp64" else dtype)))
    key = (row.name, variant.name, size)
    return TrainingPoint(
        label,
        size,
        core=(key in _CORE and dtype == "fp64") if core is None else core,
        optimizer=row.name,
        plainest=(row.name, variant.name) == ("SGD", "defaults"),
        plan=plan,
    )


def plain(*sizes: int, label: str = "", core: tuple[int, ...] = (3,), **plan: Any) -> Iterator[TrainingPoint]:
    """Yield one plan at each size, for a law that is not about optimizers."""
    return each_size(TrainingPoint, *sizes, label=label, core=core, **plan)


def each_size(
    make: Callable[..., T], *sizes: int, label: str = "", core: tuple[int, ...] = (3,), **plan: Any
) -> Iterator[T]:
    """Yield what ``make`` makes of one plan at each size. A ``partial`` of a point's class has its other fields."""
    for size in sizes:
        yield make(label, size, core=size in core, plan=Plan(size, **plan))
