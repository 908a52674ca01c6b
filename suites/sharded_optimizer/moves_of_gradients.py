"""The moves of ``sharded-optimizer`` that clear gradients, and clip them."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from everyrank.suites.arena.subject_errors import subject_acts
from everyrank.suites.compare.comparison import EXACT, Comparison, Tolerance, check
from everyrank.suites.moves.move import by_model, move, only_if
from everyrank.suites.moves.together import reference_acts
from everyrank.suites.sharded_optimizer.gradients import compare_gradients, drop_gradient, undefined_number
from everyrank.suites.sharded_optimizer.moves_of_training import TrainingMoves
from everyrank.suites.sharded_optimizer.outline import Outline

#: A norm is summed over ranks in another order than over whole tensors.
_NORM = {
    "float16": Tolerance(relative=4e-3),
    "float32": Tolerance(relative=1e-5),
    "complex64": Tolerance(relative=1e-5),
    "float64": Tolerance(relative=1e-12),
}


def _clipping_needs(outline: Outline) -> Iterator[str]:
    yield "clipping"
    # A sparse gradient has no defined norm, and in half precision one of few digits.
    yield from only_if(not (outline.differ or outline.tables or "bfloat16" in outline.model.dtypes))


class GradientMoves(TrainingMoves):
    """What is done with gradients before a step, on both sides."""

    @move(
        "grad.zero",
        needs=lambda outline: ["zero_grad", *only_if(not outline.differ)],
        drawn={"set_to_none": (None, False, True)},
        beside=({"set_to_none": True},),
        kinds=({}, {"set_to_none": False}),
        after="give",
        writes=("gradient",),
        reads=("gradient", "group"),
    )
    def clear(self, set_to_none: bool | None = None) -> None:
        """Call ``zero_grad``, with ``set_to_none`` unless it is None."""
        arguments = {} if set_to_none is None else {"set_to_none": set_to_none}
        self.sides.reference.zero_grad(**arguments)
        with subject_acts():
            self.sides.ours.zero_grad(**arguments)
        self._compare_gradients(EXACT, f", after zero_grad({arguments})")

    def _compare_gradients(self, tolerance: Tolerance, when: str = "") -> None:
        comparison = Comparison(tolerance)
        compare_gradients(self.sides, comparison, self.number, when)
        self.conclude(comparison)

    @move(
        "clip",
        needs=_clipping_needs,
        needs_of={"norm": lambda outline, norm: only_if(not (outline.empty and math.isinf(norm)))},
        drawn={
            "most": (0.5, 2.0, 100.0),
            "norm": (2.0, float("inf"), 1.0, float("inf"), 3.0),
            "undefined": (False, False, True),
            "drops": (False, False, True),
        },
        kinds=({"norm": by_model((2.0, 1.0, 2.0, 3.0))}, {"norm": float("inf")}),
        beside=(
            {"undefined": True},
            {"most": 100.0, "drops": True},
            {"undefined": True, "most": 2.0, "drops": True},
        ),
        after="give",
        shown_by="step",
        writes=("gradient",),
        reads=("gradient", "group"),
    )
    def clip(self, most: float = 0.5, norm: float = 2.0, undefined: bool = False, drops: bool = False) -> None:
        """Call ``clip_grad_norm_``, and go on from the reference's gradients.

        ``undefined``: once before that, while one number of a gradient is undefined. ``drops``: once more after it,
        without the gradient of a parameter that had one.
        """
        if undefined:
            with undefined_number(self.sides, self.number):
                self._clip(most, norm)
        self._clip(most, norm)
        self.sides.take_gradients_of_reference()
        if drops:
            drop_gradient(self.sides, self.number)
            self._clip(most, norm)
            self.sides.take_gradients_of_reference()

    def _clip(self, most: float, norm: float) -> None:
        sides = self.sides
        tolerance = next(_NORM[dtype] for dtype in _NORM if dtype in {*self.model.dtypes, "float64"})
        with reference_acts():
            expected = float(torch.nn.utils.clip_grad_norm_(sides.handed_twins, most, norm))
        with subject_acts():
            total = sides.ours.clip_grad_norm_(most, norm)
        check(torch.is_tensor(total) or isinstance(total, float), f"the norm is {total!r}, which is no number")
        off = abs(float(total) - expected)
        relative = off / abs(expected) if expected else math.inf
        check(
            off <= tolerance.relative * abs(expected) or (math.isnan(float(total)) and math.isnan(expected)),
            f"the norm is {float(total)}, that of the whole tensors {expected}: off by {relative:.1e} relative",
        )
        self._compare_gradients(tolerance)
