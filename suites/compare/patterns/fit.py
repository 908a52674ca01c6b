"""The closed list of patterns, and the first of them that fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from everyrank.suites.compare.patterns import factors, others, runs, sums, values
from everyrank.suites.compare.patterns.evidence import AllRanks, OneRank
from everyrank.suites.compare.patterns.pattern import Pattern

#: All patterns, in the order in which they are tried.
_LIST: tuple[Pattern, ...] = (
    *values.PATTERNS,
    *factors.PATTERNS,
    factors.OwnTokens(),
    *sums.PATTERNS,
    *others.PATTERNS,
    *runs.PATTERNS,
    factors.OtherFactor(),
)

#: Those with an id.
PATTERNS: Mapping[str, Pattern] = {pattern.id: pattern for pattern in _LIST if pattern.id}


@dataclass(frozen=True)
class Fit:
    """A pattern that fits, and what it says of this tensor. Without an id the text is all that is known."""

    id: str
    text: str

    def __post_init__(self) -> None:
        if self.id and self.id not in PATTERNS:
            raise ValueError(f"no pattern is called {self.id!r}: there are {', '.join(PATTERNS)}")


def of_one_rank(seen: OneRank) -> Fit | None:
    """Return the first pattern that fits a tensor as one rank has it, or None."""
    if not seen.has_numbers:
        return None
    tried = _LIST if seen.is_clear else _LIST[:1]  # no rounding makes a value infinite
    fits = (Fit(pattern.id, text) for pattern in tried if (text := pattern.of_one_rank(seen)) is not None)
    return next(fits, None)


def of_all_ranks(seen: AllRanks) -> Fit | None:
    """Return the first pattern that explains a deviation on some ranks, or None."""
    fits = (Fit(pattern.id, text) for pattern in _LIST if (text := pattern.of_all_ranks(seen)) is not None)
    return next(fits, None)


def common_factor(tensors: Sequence[OneRank]) -> Fit | None:
    """Return the factor that all these tensors have in common, if they have one.

    A tensor alone needs two elements for a factor, since any number is a multiple of another. Several tensors are
    evidence for each other.
    """
    if not all(seen.has_numbers and seen.is_clear for seen in tensors):
        return None
    if sum(seen.expected.numel() for seen in tensors) < 2:
        return None
    for pattern in factors.PATTERNS:
        texts = {pattern.of_one_rank(seen, fewest=1) for seen in tensors}
        if len(texts) == 1 and (text := texts.pop()) is not None:
            return Fit(pattern.id, text)
    return None
