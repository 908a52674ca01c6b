"""The points of the laws of ``replicate``: optimizers, variants, world sizes and models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from everyrank.fixtures.optimizers import Row, Variant, every
from everyrank.suites.compare.comparison import Tolerance
from everyrank.suites.compare.reference import Plan
from everyrank.suites.engine.contract import Point

#: Variants left out: step() under autograd writes leaves in place, and CPU tensors have no kernel of that kind.
_EXCLUDED = ("cuda", "non-leaf")

SIZES = (1, 2, 3, 4)

#: The tolerance that LBFGS needs in three steps if the order of a sum differs. It looks for the minimum twenty times
#: a step: two orders are 1e-12 apart after two steps, 1e-8 after three, and have nothing in common after six. With
#: two ranks sums are exact, so nothing is amplified.
AMPLIFIED = Tolerance(relative=1e-6)

#: Variants whose errors show only late, or only with more than two ranks.
_LONG = ("everything", "groups", "weight-decay", "momentum", "amsgrad")

#: The core points, on which rogues are tried: plain ones that show a wrong scale, one that hides it, one with groups,
#: and one with many backwards in a step.
_CORE = {
    ("SGD", "everything", 3, 10),
    ("SGD", "groups", 2, 2),
    ("Adam", "defaults", 3, 2),
    ("LBFGS", "defaults", 3, 2),
}


def training() -> Iterator[Point]:
    """Yield every optimizer in every variant; without arguments at every world size, for 2 and for 10 steps."""
    for row, variant in every(_EXCLUDED):
        runs = {(2, 2)}
        if variant.name == "defaults":
            runs |= {(size, steps) for size in SIZES for steps in (2, 10)}
        if variant.name in _LONG:
            runs.add((3, 10))
        for size, steps in sorted(runs):
            yield from _points_of(row, variant, size, steps)


def _points_of(row: Row, variant: Variant, size: int, steps: int) -> Iterator[Point]:
    amplifies = "closure" in row.needs and size > 2
    steps = min(steps, 3) if amplifies else steps
    plan = Plan(size, steps, model_for(row), row.name, variant.name)
    core = (row.name, variant.name, size, steps) in _CORE
    more = {"tolerance": AMPLIFIED} if amplifies else {}
    yield Point(f"{row.name}-{variant.name}-steps{steps}", size, {"plan": plan, **more}, core, optimizer=row.name)


def model_for(row: Row) -> str:
    """Return the name of a model that this optimizer can train."""
    if "sparse" in row.needs:
        return "sparse-embedding"
    return "matrices" if "2d" in row.needs else "plain"


def plain(*sizes: int, label: str = "", core: tuple[int, ...] = (3,), **values: Any) -> Iterator[Point]:
    """Yield one plan at each size, for a law that is not about optimizers."""
    more = values.pop("more", {})
    for size in sizes:
        yield Point(label, size, {"plan": Plan(size, **values), **more}, size in core)
