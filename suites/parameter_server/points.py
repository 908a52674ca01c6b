"""The points of the laws of ``parameter-server``: optimizers, models, and trainers near and far."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from everyrank.fixtures.models import MODELS, Model
from everyrank.fixtures.optimizers import Row, Variant, every, row
from everyrank.suites.arena.points import OptimizerPoint
from everyrank.suites.engine.contract import Point

#: A server steps once for each round, so no closure is evaluated again.
EXCLUDED = ("closure", "cuda", "non-leaf")

#: The rank fixtures of a point with far trainers.
AGENT = ("warm_rpc_agent",)

#: The core variants, on which rogues are tried: one that hides a wrong scale, some that show it, decay, and groups.
_CORE = {("SGD", "momentum"), ("SGD", "groups"), ("Adam", "defaults"), ("AdamW", "weight-decay")}


@dataclass(frozen=True, kw_only=True)
class ServerPoint(Point):
    """A point with the number of trainers. Each far trainer has its own rank, beside the server's."""

    trainers: int
    far: bool = False


@dataclass(frozen=True, kw_only=True)
class VariantPoint(ServerPoint, OptimizerPoint):
    """A point with an optimizer of the table and a model."""

    model: str | Model
    dtype: torch.dtype = torch.float64
    sparse_model: bool = False

    @property
    def sparse(self) -> bool:
        """Whether all gradients are sparse."""
        return self.sparse_model or "sparse" in self.row.needs


S = TypeVar("S", bound=ServerPoint)
V = TypeVar("V", bound=VariantPoint)


def optimizer(row: Row, variant: Variant) -> Callable[[Any], torch.optim.Optimizer]:
    """Return what makes the optimizer, for the build of a subject and for the reference."""
    return partial(row.build, variant=variant)


def sgd(**arguments: Any) -> Callable[[Any], torch.optim.Optimizer]:
    """Return what makes an SGD, for a law that is not about optimizers."""
    return lambda parameters: torch.optim.SGD(parameters, **{"lr": 0.5, **arguments})


def point(
    make: Callable[..., S], label: str, trainers: int = 2, *, core: bool = True, far: bool = False, **fields: Any
) -> S:
    """Return a point of this class with this number of trainers, and its other fields."""
    names = [label, "rpc" if far else "", f"n{trainers}"]
    size, fixtures = (trainers + 1, AGENT) if far else (1, None)
    label = "-".join(filter(None, names))
    return make(label, size, core=core, fixtures=fixtures, trainers=trainers, far=far, **fields)


def plain(label: str = "", trainers: int = 2, *, core: bool = True, far: bool = False) -> ServerPoint:
    """Return a point for a law that needs nothing but trainers."""
    return point(ServerPoint, label, trainers, core=core, far=far)


def variant_point(
    make: Callable[..., V],
    row: Row,
    variant: Variant,
    trainers: int,
    *,
    label: str = "",
    core: bool = False,
    far: bool = False,
    **fields: Any,
) -> V:
    """Return a point of this class with this optimizer, on a model that it can train unless a field names another."""
    fields = {"model": row.model, **fields}
    name = "-".join(filter(None, [row.name, variant.name, label]))
    plainest = (row.name, variant.name) == ("SGD", "defaults")
    fields |= {"optimizer": row.name, "plainest": plainest, "row": row, "variant": variant}
    return point(make, name, trainers, core=core, far=far, **fields)


def variants() -> Iterator[VariantPoint]:
    """Yield every optimizer in every variant with three trainers; some with 1, 2 and 7, and with other models."""
    make = partial(variant_point, VariantPoint)
    for other, variant in every(EXCLUDED):
        yield make(other, variant, 3, core=(other.name, variant.name) in _CORE)
        if variant.name == "defaults" and "sparse" not in other.needs:
            yield make(other, variant, 3, label="fp32", dtype=torch.float32)
    sgd, momentum = row("SGD"), row("SGD").variant("momentum")
    for trainers in (1, 2, 7):
        yield make(sgd, momentum, trainers, core=trainers == 1)
        yield make(sgd, momentum, trainers, far=True, core=trainers == 1)
    for name, model in MODELS.items():
        if "large" in model.properties:
            continue  # size matters to a subject that packs parameters into buckets, which a server does not do
        sparse = "sparse" in model.properties
        variant = sgd.variant("lr") if sparse else momentum
        yield make(sgd, variant, 2, label=name, model=name, sparse_model=sparse)


def with_far_trainers() -> Iterator[VariantPoint]:
    """Yield every optimizer without arguments, with three far trainers."""
    for other, variant in every(EXCLUDED):
        if variant.name == "defaults":
            yield variant_point(VariantPoint, other, variant, 3, far=True)


def rows() -> Iterator[tuple[Row, Variant]]:
    """Yield every optimizer that takes dense gradients, with the variant without arguments."""
    for other, variant in every((*EXCLUDED, "sparse")):
        if variant.name == "defaults":
            yield other, variant
