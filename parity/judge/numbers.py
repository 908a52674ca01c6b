"""What happened to a number that each rank has: the loss, or the norm of the gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence

from everyrank.suites.compare.patterns.factors import counts_something
from everyrank.suites.compare.patterns.fit import Fit


def of_numbers(numbers: Sequence[float], truth: float, size: int, own: Sequence[float]) -> Fit:
    """Return the pattern that explains the ranks' numbers; without an id if none does.

    ``own`` is what the number would be of what each rank holds.
    """
    text = f"is {' and '.join(sorted({f'{number:.6g}' for number in numbers})[:4])} instead of {truth:.6g}"
    if not all(math.isfinite(number) for number in numbers):
        return Fit("nan", text)
    if not any(numbers):
        return Fit("zero", text)
    factors = {number / truth for number in numbers} if truth else set()
    for known in (size, 1 / size):
        if factors and all(abs(factor / known - 1) < 1e-6 for factor in factors):
            return Fit("sum-for-mean", f"{text}: {known:g} times, by the number of ranks")
    if not own and truth and abs(sum(numbers) / len(numbers) / truth / size - 1) < 1e-6:
        return Fit("sum-for-mean", f"{text}: their mean is {size:g} times that, by the number of ranks")
    if len(own) == len(numbers) and all(math.isclose(*pair, rel_tol=1e-6) for pair in zip(own, numbers, strict=True)):
        return Fit("not-reduced", f"{text}: each rank has that of what it holds")
    if factors and max(factors) - min(factors) < 1e-6 * max(factors) and counts_something(max(factors)):
        return Fit("sum-for-mean", f"{text}: {max(factors):.6g} times")
    return Fit("", text)
