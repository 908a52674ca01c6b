"""Where each law of ``replicate`` is checked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from everyrank.fixtures.optimizers import Row, Variant, every
from everyrank.suites.contract import Point
from everyrank.suites.reference import Plan

#: step() under autograd writes leaves in place, and there is no kernel of this kind for CPU tensors.
_EXCLUDED = ("cuda", "non-leaf")

SIZES = (1, 2, 3, 4)

#: What shows only late, or only with more than two ranks.
_LONG = ("everything", "groups", "weight-decay", "momentum", "amsgrad")

#: Rogues are tried on these: plain ones that show a wrong scale, one that hides it, one with groups.
_CORE = {
    ("SGD", "everything", 3, 10),
    ("SGD", "groups", 2, 2),
    ("Adam", "defaults", 3, 2),
}


def training() -> Iterator[Point]:
    """Every optimizer in every variant; without arguments at every world size, for 2 and for 10 steps."""
    for row, variant in every(_EXCLUDED):
        places = {(2, 2)}
        if variant.name == "defaults":
            places |= {(size, steps) for size in SIZES for steps in (2, 10)}
        if variant.name in _LONG:
            places.add((3, 10))
        for size, steps in sorted(places):
            yield from _of(row, variant, size, steps)


def _of(row: Row, variant: Variant, size: int, steps: int) -> Iterator[Point]:
    plan = Plan(size, steps, model_for(row), row.name, variant.name)
    core = (row.name, variant.name, size, steps) in _CORE
    label = f"{row.name}-{variant.name}-steps{steps}"
    # It looks for the minimum twenty times a step: what two orders of a sum differ by grows to 1e-8.
    why = f"{row.name} amplifies rounding; with two ranks it is exact" if "closure" in row.needs and size > 2 else ""
    yield Point(label, size, {"plan": plan}, core, why, row.name)


def model_for(row: Row) -> str:
    """A model that this optimizer can take."""
    if "sparse" in row.needs:
        return "sparse-embedding"
    return "matrices" if "2d" in row.needs else "plain"


def plain(*sizes: int, label: str = "", core: tuple[int, ...] = (3,), **values: Any) -> Iterator[Point]:
    """No matter of optimizers: one plan at each size."""
    more = values.pop("more", {})
    for size in sizes:
        yield Point(label, size, {"plan": Plan(size, **values), **more}, size in core)
