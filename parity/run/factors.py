"""The factor between the gradients of outputs and the plain model's: a uniform one is a convention, and no fault."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from everyrank.parity.run.plain import BACKWARD
from everyrank.parity.values.watch import Seat
from everyrank.suites.compare.patterns.likeness import distance, multiple


@dataclass(frozen=True)
class Convention:
    """The factor of gradients of outputs: a sum of means, or a mean of sums."""

    factor: float | None = None
    """What most outputs had in the passes before."""
    counts: frozenset[int] = frozenset()
    """What it may count: ranks, those of a group, microbatches."""
    apart: frozenset[tuple[int, Seat]] = frozenset()
    """The steps and outputs of this rank that have another one."""


class Factors:
    """The factors of one pass on this rank."""

    def __init__(self, convention: Convention) -> None:
        #: The factor, where it was last seen.
        self._last, self._convention = convention.factor, convention

    def likely(self, mine: torch.Tensor, piece: torch.Tensor) -> float:
        """Return the factor of a gradient; if none was seen, the one that gives a wrong gradient its size."""
        known = self._last if self._convention.factor is None else self._convention.factor
        if known is not None:
            return known
        sizes = [float(torch.linalg.vector_norm(each.double())) for each in (mine, piece)]
        if not all(sizes):
            return 1.0
        counts = self._convention.counts
        factors = {1.0, *map(float, counts), *(1 / count for count in counts)}
        return min(factors, key=lambda factor: abs(math.log(sizes[0] / sizes[1] / factor)))

    def allowed(self, step: int, seat: Seat, mine: torch.Tensor, piece: torch.Tensor) -> float:
        """Return the factor with which an output or its gradient is compared: one of its own, unless it parts."""
        if (step, seat) in self._convention.apart:
            return self._convention.factor or 1.0
        return (multiple(mine, piece) if seat[0] == BACKWARD else 1.0) or 1.0

    def fit(self, mine: torch.Tensor, piece: torch.Tensor, near: float) -> tuple[float, float] | None:
        """Return the factor with which a gradient is near the plain model's, and how far it is then."""
        for factor in (lambda: 1.0, lambda: self._last or 1.0, lambda: multiple(mine, piece)):
            number = factor()
            off = distance(mine if number == 1 else mine.double() / number, piece) if number else math.inf
            if number and off <= near:
                self._last = number if number != 1 else self._last
                return number, off
        return None
