"""The points of the laws of ``rpc-optimizer``: optimizers, variants and world sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from everyrank.fixtures.optimizers import Row, Variant, rows
from everyrank.fixtures.optimizers import row as find_row
from everyrank.suites.arena.points import OptimizerPoint
from everyrank.suites.engine.contract import Point
from everyrank.suites.rpc_optimizer.model import Param

#: Needs that cannot be met: step(context_id) takes no closure. Groups cannot be either, in a flat list of RRefs.
_EXCLUDED = {"closure", "sparse", "cuda", "non-leaf"}

#: The core points, on which rogues are tried: one that hides a wrong scale, one that shows it, one with weight decay.
_CORE = {("SGD", "momentum"), ("Adam", "defaults"), ("AdamW", "weight-decay")}


def variant_point(row: Row, variant: Variant, size: int) -> OptimizerPoint:
    return OptimizerPoint(
        f"{row.name}-{variant.name}",
        size,
        core=(row.name, variant.name) in _CORE,
        optimizer=row.name,
        plainest=(row.name, variant.name) == ("SGD", "defaults"),
        row=row,
        variant=variant,
    )


def variants(size: int = 3) -> Iterator[OptimizerPoint]:
    """Yield every optimizer in every variant."""
    for row in rows():
        for variant in row.variants:
            if (row.needs | variant.needs) & _EXCLUDED or variant.group_arguments:
                continue
            yield variant_point(row, variant, size)


def defaults(size: int = 2) -> Iterator[OptimizerPoint]:
    """Yield every optimizer without arguments."""
    return (point for point in variants(size) if point.variant.name == "defaults")


def plain(*sizes: int) -> Iterator[Point]:
    """Yield a core point for each size, for a law that needs nothing else."""
    for size in sizes:
        yield Point("", size, core=True)


@dataclass(frozen=True, kw_only=True)
class DtypePoint(OptimizerPoint):
    """A point with the dtype of all parameters, and the shape of one, if that is a special one."""

    dtype: torch.dtype
    shape: tuple[int, ...] | None = None


def dtypes() -> Iterator[DtypePoint]:
    """Yield every optimizer with every dtype, complex with all arguments too, and special shapes with SGD."""
    names = {"fp32": torch.float32, "fp64": torch.float64, "bf16": torch.bfloat16, "complex": torch.complex128}
    for row in rows():
        if row.needs & {"closure", "sparse"}:
            continue
        for name, dtype in names.items():
            refused = "" if name != "complex" or "complex" in row.takes else f"{row.name} takes no complex parameters"
            yield DtypePoint(
                f"{row.name}-{name}",
                2,
                core=row.name == "SGD",
                not_applicable=refused,
                optimizer=row.name,
                row=row,
                variant=row.plain,
                dtype=dtype,
            )
        everything = row.fullest
        if "complex" in row.takes - everything.refuses:
            yield DtypePoint(
                f"{row.name}-complex-everything",
                2,
                core=row.name == "SGD",
                optimizer=row.name,
                row=row,
                variant=everything,
                dtype=torch.complex128,
            )
    sgd = find_row("SGD")
    special: dict[str, tuple[int, ...]] = {"zero-dim": (), "empty": (0, 3)}
    for name, shape in special.items():
        yield DtypePoint(
            f"SGD-{name}",
            2,
            core=True,
            optimizer="SGD",
            row=sgd,
            variant=sgd.plain,
            dtype=torch.float64,
            shape=shape,
        )


@dataclass(frozen=True, kw_only=True)
class SparsePoint(OptimizerPoint):
    """A point that fixes whether a row is looked up twice: its two gradients are to be summed."""

    twice: bool = False


def sparse() -> Iterator[SparsePoint]:
    """Yield every optimizer that takes sparse gradients, of distinct rows, and of rows with one that comes twice."""
    for row in rows():
        if "sparse" in row.takes and "closure" not in row.needs:
            for label, twice in (("lr", False), ("row-twice", True)):
                label = f"{row.name}-{label}"
                yield SparsePoint(label, 2, core=True, optimizer=row.name, row=row, variant=row.plain, twice=twice)


#: For each position of the None gradient, the parameters used in each step. The caller owns the last parameter.
_POSITIONS: dict[str, list[list[int]]] = {
    "first": [[1, 2]] * 3,
    "middle": [[0, 2]] * 3,
    "last": [[0, 1]] * 3,
    "none": [[0, 1, 2]] * 3,
    "all": [[3], [3], [0, 1, 2, 3]],
}


@dataclass(frozen=True, kw_only=True)
class PositionPoint(OptimizerPoint):
    """A point with the numbers of the parameters that each step uses."""

    used: list[list[int]]


def none_positions() -> Iterator[PositionPoint]:
    """Yield a None gradient at each position, with every optimizer."""
    for row in rows():
        if row.needs & {"closure", "sparse"}:
            continue
        for position, used in _POSITIONS.items():
            yield PositionPoint(
                f"{row.name}-{position}",
                2,
                core=row.name in ("SGD", "Adam"),
                optimizer=row.name,
                row=row,
                variant=row.plain,
                used=used,
            )


def params_for(row: Row, owners: Sequence[int]) -> list[Param]:
    """Return parameters of unequal shapes; only matrices if the optimizer takes nothing else."""
    if "2d" in row.needs:
        kinds: list[tuple[int, ...]] = [(3, 4), (2, 5), (4, 2), (1, 3)]
    else:
        kinds = [(3, 4), (5,), (2, 3), (1,)]
    return [Param(owner, kinds[number % len(kinds)]) for number, owner in enumerate(owners)]
