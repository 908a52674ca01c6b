"""Where each law of ``rpc-optimizer`` is checked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from everyrank.fixtures.optimizers import Row, Variant, rows
from everyrank.suites.contract import Point

#: step(context_id) has no place for a closure; a flat list of RRefs none for groups.
_EXCLUDED = {"closure", "sparse", "cuda", "non-leaf"}

#: Rogues are tried on these: one that hides a wrong scale, one that does not, one with weight decay.
_CORE = {("SGD", "momentum"), ("Adam", "defaults"), ("AdamW", "weight-decay")}


def point(row: Row, variant: Variant, size: int, **more: Any) -> Point:
    core = (row.name, variant.name) in _CORE
    values = {"row": row, "variant": variant, **more}
    return Point(f"{row.name}-{variant.name}", size, values, core, optimizer=row.name)


def variants(size: int = 3, **more: Any) -> Iterator[Point]:
    """Every optimizer in every variant."""
    for row in rows():
        for variant in row.variants:
            if (row.needs | variant.needs) & _EXCLUDED or variant.group_arguments:
                continue
            yield point(row, variant, size, **more)


def defaults(size: int = 2, **more: Any) -> Iterator[Point]:
    """Every optimizer without arguments."""
    for each in variants(size, **more):
        if each.values["variant"].name == "defaults":
            yield each


def plain(*sizes: int, label: str = "", core: bool = True, **values: Any) -> Iterator[Point]:
    """No matter of optimizers."""
    for size in sizes:
        yield Point(label, size, values, core)


def shapes(row: Row, owners: list[int]) -> list[tuple[int, tuple[int, ...]]]:
    """Unequal shapes; matrices only where the optimizer takes no others."""
    if "2d" in row.needs:
        kinds: list[tuple[int, ...]] = [(3, 4), (2, 5), (4, 2), (1, 3)]
    else:
        kinds = [(3, 4), (5,), (2, 3), (1,)]
    return [(owner, kinds[number % len(kinds)]) for number, owner in enumerate(owners)]
