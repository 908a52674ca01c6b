"""The points of the laws of ``replicate``: optimizers, variants, world sizes and models."""

from __future__ import annotations

from collections.abc import Iterator

from everyrank.fixtures.optimizers import Row, Variant, every
from everyrank.suites.compare.comparison import Tolerance
from everyrank.suites.compare.reference import Plan
from everyrank.suites.trainer.points import EXCLUDED, SIZES
from everyrank.suites.trainer.points import TrainingPoint as TrainingPoint
from everyrank.suites.trainer.points import each_size as each_size
from everyrank.suites.trainer.points import plain as plain

#: The tolerance that LBFGS needs in three steps if the order of a sum differs. It looks for the minimum twenty times
#: a step: two orders are 1e-12 apart after two steps, 1e-8 after three, and have nothing in common after six. With
#: two ranks sums are exact, so nothing is amplified.
AMPLIFIED = Tolerance(relative=1e-6)

#: The world sizes and steps of the variants of an optimizer, in turn.
_TURNS = ((3, 10), (4, 2), (2, 10), (3, 2), (4, 10), (2, 2))

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


def training() -> Iterator[TrainingPoint]:
    """Yield every optimizer in every variant; without arguments at every world size, for 2 and for 10 steps.

    The variants of an optimizer are trained on two ranks for 2 steps, and for another number at another size in turn.
    """
    for row, variant in every(EXCLUDED):
        runs = {(2, 2), _TURNS[row.variants.index(variant) % len(_TURNS)]}
        if variant.name == "defaults":
            runs |= {(size, steps) for size in SIZES for steps in (2, 10)}
        if variant.name in _LONG:
            runs.add((3, 10))
        for size, steps in sorted(runs):
            yield from _points_of(row, variant, size, steps)


def amplifies(row: Row, size: int) -> bool:
    """Return whether an optimizer amplifies the order of a sum over the ranks of a world of this size."""
    return "closure" in row.needs and size > 2


def _points_of(row: Row, variant: Variant, size: int, steps: int) -> Iterator[TrainingPoint]:
    steps = min(steps, 3) if amplifies(row, size) else steps
    plan = Plan(size, steps, row.model, row.name, variant.name)
    yield TrainingPoint(
        f"{row.name}-{variant.name}-steps{steps}",
        size,
        core=(row.name, variant.name, size, steps) in _CORE,
        optimizer=row.name,
        plainest=(row.name, variant.name) == ("SGD", "defaults"),
        plan=plan,
    )
