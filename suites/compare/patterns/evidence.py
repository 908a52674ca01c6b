"""What is known of a tensor that deviates: as one rank has it, or as all ranks have it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from everyrank.suites.compare.patterns.likeness import Held, distance
from everyrank.suites.compare.patterns.texts import ranks_text

Values = Mapping[str, torch.Tensor]

#: By how much a deviation must exceed the tolerance of a comparison.
CLEARLY = 100.0
#: How many units in the last place a value may be off, even if the comparison is exact.
_ROUNDING = 16.0


def close(values: torch.Tensor, other: torch.Tensor, relative: float) -> bool:
    """Return whether two tensors are the same, up to a part of their largest element."""
    if values.shape != other.shape or not values.numel():
        return values.shape == other.shape
    values, other = values.double(), other.double()
    scale = max(float(values.abs().max()), float(other.abs().max()))
    return float((values - other).abs().max()) <= relative * scale


@dataclass(frozen=True)
class OneRank:
    """A tensor as one rank has it, what it should be, and what else it might be.

    A prediction explains it if the values are the same, up to the tolerance of the comparison. If the deviation is
    not far larger than this tolerance, nothing explains it, since rounding looks like many patterns.
    """

    values: torch.Tensor
    expected: torch.Tensor
    before: torch.Tensor | None = None
    """The reference a step before, if there was one."""
    others: Values = field(default_factory=dict)
    """The reference's other tensors, by name."""
    ranks: int = 0
    """How many ranks train together; 0 if that is not known."""
    relative: float = 0.0
    """The tolerance of the comparison."""

    @property
    def slack(self) -> float:
        """How far values may be apart that are the same, relative to the largest."""
        return max(self.relative, _ROUNDING * torch.finfo(self.expected.dtype).eps)

    @property
    def near(self) -> float:
        """How far values may be apart that are the same."""
        return self.slack * max(float(self.values.abs().max()), float(self.expected.abs().max()))

    @property
    def rows(self) -> int:
        return self.expected.shape[0] if self.expected.dim() else 0

    @property
    def has_numbers(self) -> bool:
        alike = self.values.shape == self.expected.shape and self.values.dtype == self.expected.dtype
        real = self.expected.is_floating_point() and not self.expected.is_sparse
        return alike and real and self.expected.numel() > 0

    @property
    def is_clear(self) -> bool:
        """Whether the deviation is so large that it cannot be rounding."""
        return not close(self.values, self.expected, CLEARLY * self.slack)

    def is_like(self, values: torch.Tensor) -> bool:
        """Return whether these are the values of the tensor."""
        return close(self.values, values, self.slack)


@dataclass(frozen=True)
class AllRanks:
    """A tensor of the plain model, and what each rank has of it.

    A prediction explains the deviation if it is much nearer to the values of the wrong ranks than the truth is.
    """

    whole: torch.Tensor
    """The truth."""
    held: Mapping[int, Held]
    """What each rank has."""
    wrong: Sequence[int]
    """The ranks on which it differs."""
    size: int
    """How many ranks there are."""
    microbatches: int = 1
    groups: Mapping[str, Sequence[Sequence[int]]] = field(default_factory=dict)
    """Ranks that work together, by the name of their group."""
    pieces: Callable[[], Sequence[Sequence[torch.Tensor]]] = tuple
    """The gradient of each microbatch, which add up to the truth, for each way to cut the batch."""
    before: torch.Tensor | None = None
    """The truth of the step before."""
    others: Values = field(default_factory=dict)
    """Other tensors of the plain model."""
    tokens: Sequence[Sequence[float]] = ()
    """How many tokens count in the batch of each rank, for each way to count and to cut them."""
    times: float = 100.0
    """How many times nearer than the truth a prediction must be: less where rounding is in all values."""

    @property
    def location(self) -> str:
        """The ranks on which it differs, as text."""
        return ranks_text(self.wrong)

    def expected(self, rank: int) -> torch.Tensor:
        """Return the truth of what a rank holds."""
        return self.of_rank(self.whole, rank).double()

    def of_rank(self, whole: torch.Tensor, rank: int) -> torch.Tensor:
        """Return the elements of a whole tensor that a rank holds."""
        return whole.reshape(-1)[self.held[rank].ids]

    def off(self, rank: int) -> float:
        """Return how far a rank's values are from the truth."""
        return distance(self.held[rank].values.double(), self.expected(rank))

    def explains(self, predicted: Callable[[int], torch.Tensor]) -> bool:
        """Return whether a prediction for each wrong rank is much nearer to its values than the truth is."""
        return all(
            distance(self.held[rank].values.double(), predicted(rank).double()) <= self.off(rank) / self.times
            for rank in self.wrong
        )

    @cached_property
    def mixture(self) -> list[float]:
        """The factors of a sum of the microbatches' gradients that explains the values; empty if none does."""
        return next((factors for pieces in self.pieces() if (factors := self._mixed(pieces))), [])

    def _mixed(self, pieces: Sequence[torch.Tensor]) -> list[float]:
        if len(pieces) < 2:
            return []

        def columns(rank: int) -> torch.Tensor:
            return torch.stack([self.of_rank(piece, rank).double() for piece in pieces], dim=1)

        rank = self.wrong[0]
        if len(self.held[rank].ids) <= len(pieces):
            return []  # As many factors as values give any values.
        if not (columns(rank).isfinite().all() and self.held[rank].values.isfinite().all()):
            return []  # A part without a token has no mean.
        solved = torch.linalg.lstsq(columns(rank), self.held[rank].values.double()[:, None]).solution[:, 0]
        if not torch.isfinite(solved).all() or not self.explains(lambda rank: columns(rank) @ solved):
            return []
        # So few that add up to nothing, as those of a classifier's bias, are a mixture, too: of which factors tells.
        is_given = len(self.held[rank].ids) == len(pieces) + 1 and _add_up_to_nothing(columns(rank))
        if is_given and not close(solved * self.size, (solved * self.size).round(), 1e-4):
            return []
        return [round(float(factor), 4) for factor in solved]


def _add_up_to_nothing(columns: torch.Tensor) -> bool:
    return bool((columns.sum(0).abs() <= 1e-6 * columns.abs().sum(0)).all())
