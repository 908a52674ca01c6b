"""The losses with which backwards begin: whose mean over ranks is one rank's, or whose sum."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from everyrank.parity.judge.numbers import of_numbers
from everyrank.parity.script.kept import Moment
from everyrank.parity.script.parting import Parting
from everyrank.parity.script.runs import TIMES, Step, rounding
from everyrank.suites.compare.patterns.texts import ranks_text
from torch import Tensor

#: The most that a loss is taken to be rounded by, in whatever dtype it is; autocast and FSDP round more.
_FP32 = 1.2e-7


def has_losses(*steps: Step) -> bool:
    """Return whether each backward of these steps began with a number."""
    losses = [moment for step in steps for each in step.moments for moment in each if moment.kind == "loss"]
    return bool(losses) and all(moment.parts for moment in losses)


def parting_of_losses(
    truth: Step, mine: Step, moved: Step | None, number: int, called: str, eps: float
) -> Parting | None:
    """Return how the losses of a step part; None if they are the same."""
    numbers, expected, allowed = _losses(mine), means(truth), bound_of_losses(truth, moved, eps)
    mean, total = means(mine), sum(numbers)
    if abs(mean - expected) <= allowed or all(abs(each - expected) <= allowed for each in numbers):
        return None
    line = next(moment.line for moment in mine.moments[0] if moment.kind == "loss")
    if lost := [rank for rank, each in enumerate(numbers) if not math.isfinite(each)]:
        text = f"is {numbers[lost[0]]:g} on {ranks_text(lost)}"
        return Parting(number, "loss", text, line, kind="loss", names=("",), pattern="nan")
    if abs(total - expected) <= allowed * len(numbers):
        text = f"is 1/{len(numbers)} of {called}'s, if the mean of the ranks' is taken: they add up to it"
        return Parting(number, "loss", text, line, besides="DDP and FSDP average gradients, and add none up")
    fit = of_numbers([mean], expected, len(numbers), [])
    text = f"{fit.text} (the mean over ranks, and {called}'s)"
    return Parting(number, "loss", text, line, kind="loss", names=("",), pattern=fit.id)


def bound_of_losses(truth: Step, moved: Step | None, eps: float) -> float:
    """Return how far the mean of the ranks' losses may be off."""
    expected = means(truth)
    own = min(_FP32, *(torch.finfo(each.dtype).eps for each in _tensors(truth.moments[0])))
    allowed = max(rounding(own), rounding(eps)) * max(abs(expected), 1e-3)
    if moved is not None and _losses(moved):
        allowed += TIMES * abs(means(moved) - expected)
    return allowed


def means(step: Step) -> float:
    """Return the mean of the ranks' losses."""
    losses = _losses(step)
    return sum(losses) / len(losses)


def _losses(step: Step) -> list[float]:
    """Return the loss of each rank: the sum of those with which its backwards began."""
    return [sum(float(each.reshape(-1)[0]) for each in _tensors(moments)) for moments in step.moments]


def _tensors(moments: Sequence[Moment]) -> list[Tensor]:
    return [moment.parts[""].values for moment in moments if moment.kind == "loss"]


def with_loss(loss: Parting, found: Parting, agreed: tuple[str, ...]) -> Parting:
    """Return that the loss parts; or the gradients, if ranks have shares of the loss: right if these are added up."""
    if loss.besides:
        return replace(found, agreed=agreed, besides=f"the loss ({loss.line}) {loss.text}; {loss.besides}")
    return replace(loss, agreed=agreed)
