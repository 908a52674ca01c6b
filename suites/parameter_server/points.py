"""Where each law of ``parameter-server`` is checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from everyrank.fixtures.models import MODELS
from everyrank.fixtures.optimizers import Row, Variant, every, row
from everyrank.suites.engine.contract import Point

#: A server steps once for each round: there is nothing that a closure could compute again.
EXCLUDED = ("closure", "cuda", "non-leaf")

#: What far trainers need.
AGENT = ("warm_rpc_agent",)

#: Rogues are tried on these: one that hides a wrong scale, some that do not, with decay, and with groups.
_CORE = {("SGD", "momentum"), ("SGD", "groups"), ("Adam", "defaults"), ("AdamW", "weight-decay")}


def optimizer(row: Row, variant: Variant) -> Callable[[Any], torch.optim.Optimizer]:
    """What a subject's build is given to make its optimizer with, and the reference too."""
    return partial(row.build, variant=variant)


def sgd(**arguments: Any) -> Callable[[Any], torch.optim.Optimizer]:
    """Plain SGD, so that nothing but the law's own matter shows."""
    return lambda parameters: torch.optim.SGD(parameters, **{"lr": 0.5, **arguments})


def model_for(row: Row) -> str:
    """The model that suits an optimizer."""
    if "sparse" in row.needs:
        return "sparse-embedding"
    return "matrices" if "2d" in row.needs else "plain"


def point(label: str, trainers: int = 2, core: bool = True, rpc: bool = False, **values: Any) -> Point:
    """A place without a matter of optimizers."""
    names = [label, "rpc" if rpc else "", f"n{trainers}"]
    size = trainers + 1 if rpc else 1
    values = {"trainers": trainers, "rpc": rpc, **values}
    return Point("-".join(filter(None, names)), size, values, core, fixtures=AGENT if rpc else None)


def of(row: Row, variant: Variant, trainers: int, rpc: bool = False, core: bool = False, **more: Any) -> Point:
    """A place for one optimizer."""
    names = [row.name, variant.name, str(more.get("label", "")), "rpc" if rpc else "", f"n{trainers}"]
    values = {"model": model_for(row), "dtype": torch.float64} | more
    values |= {"row": row, "variant": variant, "trainers": trainers, "rpc": rpc}
    size = trainers + 1 if rpc else 1
    fixtures = AGENT if rpc else None
    return Point("-".join(filter(None, names)), size, values, core, optimizer=row.name, fixtures=fixtures)


def variants() -> Iterator[Point]:
    """Every optimizer in every variant with three trainers; some with one, two and seven, and with other models."""
    for each, variant in every(EXCLUDED):
        yield of(each, variant, 3, core=(each.name, variant.name) in _CORE)
        if variant.name == "defaults" and "sparse" not in each.needs:
            yield of(each, variant, 3, label="fp32", dtype=torch.float32)
    plain, momentum = row("SGD"), row("SGD").variant("momentum")
    for trainers in (1, 2, 7):
        yield of(plain, momentum, trainers, core=trainers == 1)
        yield of(plain, momentum, trainers, rpc=True, core=trainers == 1)
    for name, model in MODELS.items():
        if "large" in model.properties:
            continue  # its size matters to whoever packs parameters into buckets, and a server does not
        yield (
            of(plain, momentum, 2, label=name, model=name)
            if "sparse" not in model.properties
            else of(plain, plain.variant("lr"), 2, label=name, model=name, sparse=True)
        )


def far() -> Iterator[Point]:
    """Every optimizer with three trainers on workers of their own."""
    for each, variant in every(EXCLUDED):
        if variant.name == "defaults":
            yield of(each, variant, 3, rpc=True)


def rows() -> Iterator[tuple[Row, Variant]]:
    """Every optimizer that takes dense gradients, with its defaults."""
    for each, variant in every((*EXCLUDED, "sparse")):
        if variant.name == "defaults":
            yield each, variant
