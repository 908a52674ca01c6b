"""The points of the laws of ``rpc-optimizer``: optimizers, variants and world sizes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from everyrank.fixtures.optimizers import Row, Variant, rows
from everyrank.suites.engine.contract import Point

#: Needs that cannot be met: step(context_id) takes no closure. Groups cannot be either, in a flat list of RRefs.
_EXCLUDED = {"closure", "sparse", "cuda", "non-leaf"}

#: The core points, on which rogues are tried: one that hides a wrong scale, one that shows it, one with weight decay.
_CORE = {("SGD", "momentum"), ("Adam", "defaults"), ("AdamW", "weight-decay")}


def point(row: Row, variant: Variant, size: int, **more: Any) -> Point:
    core = (row.name, variant.name) in _CORE
    values = {"row": row, "variant": variant, **more}
    return Point(f"{row.name}-{variant.name}", size, values, core, optimizer=row.name)


def variants(size: int = 3, **more: Any) -> Iterator[Point]:
    """Yield every optimizer in every variant."""
    for row in rows():
        for variant in row.variants:
            if (row.needs | variant.needs) & _EXCLUDED or variant.group_arguments:
                continue
            yield point(row, variant, size, **more)


def defaults(size: int = 2, **more: Any) -> Iterator[Point]:
    """Yield every optimizer without arguments."""
    for found in variants(size, **more):
        if found.values["variant"].name == "defaults":
            yield found


def plain(*sizes: int, label: str = "", core: bool = True, **values: Any) -> Iterator[Point]:
    """Yield a point for each size, for a law that is not about optimizers."""
    for size in sizes:
        yield Point(label, size, values, core)


def shapes(row: Row, owners: list[int]) -> list[tuple[int, tuple[int, ...]]]:
    """Return unequal shapes; only matrices if the optimizer takes nothing else."""
    if "2d" in row.needs:
        kinds: list[tuple[int, ...]] = [(3, 4), (2, 5), (4, 2), (1, 3)]
    else:
        kinds = [(3, 4), (5,), (2, 3), (1,)]
    return [(owner, kinds[number % len(kinds)]) for number, owner in enumerate(owners)]
