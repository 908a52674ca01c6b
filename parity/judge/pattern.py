"""Say what happened to a tensor: a closed list of patterns, each by a test that must explain the deviation.

A pattern explains a deviation if what it predicts is much nearer to the values than the truth is.
Nothing is named where nothing fits.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from everyrank.model.counts import count
from everyrank.parity.values.names import short
from everyrank.suites.compare.likeness import Held, distance, index_text, moved, multiple, spoilt, wrong_from

#: The patterns, with a sentence for each; docs/parity-patterns.md has a page.
PATTERNS: dict[str, str] = {
    "sum-for-mean": "a uniform factor: a sum where a mean belongs, or a mean where a sum does",
    "not-reduced": "each rank has its own part of a sum over ranks",
    "reduced-twice": "the first microbatch is reduced again with each that follows",
    "replicas-differ": "ranks that hold the same elements have other values",
    "other-parameter": "the values belong to another parameter",
    "stale": "the values belong to the step before",
    "zero": "all values are zero",
    "shifted": "the values are right, but at other positions",
    "from-index": "the values are right up to an index, and wrong from it on",
    "nan": "values are not finite",
    "rounded": "the values have gone through a narrower dtype",
    "other-dtype-only": "the deviation is there in one dtype, and not in another",
}


@dataclass(frozen=True)
class Pattern:
    """A pattern that explains a deviation."""

    id: str
    words: str


@dataclass(frozen=True)
class Evidence:
    """All that is known of a tensor that parts from the plain model's."""

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
    others: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Other tensors of the plain model."""
    times: float = 100.0
    """How many times nearer than the truth a prediction must be: less where rounding is in all values."""

    def expected(self, rank: int) -> torch.Tensor:
        """Return the truth of what a rank holds."""
        return self.whole.reshape(-1)[self.held[rank].ids].double()

    def off(self, rank: int) -> float:
        """Return how far a rank's values are from the truth."""
        return distance(self.held[rank].values.double(), self.expected(rank))

    def explains(self, predicted: Callable[[int], torch.Tensor | None], ranks: Sequence[int] = ()) -> bool:
        """Return whether a prediction is much nearer to the values of the wrong ranks than the truth is."""
        for rank in ranks or self.wrong:
            values = predicted(rank)
            if (
                values is None
                or not distance(self.held[rank].values.double(), values.double()) <= self.off(rank) / self.times
            ):
                return False
        return True


def recognize(evidence: Evidence) -> Pattern | None:
    """Return the pattern that explains a deviation, or None."""
    return next((found for test in _TESTS if (found := test(evidence)) is not None), None)


def of_numbers(numbers: Sequence[float], truth: float, size: int, own: Sequence[float]) -> Pattern:
    """Return what happened to a number that each rank has: the loss, or the norm.

    ``own`` is what it would be of what each rank holds.
    """
    text = f"is {' and '.join(sorted({f'{number:.6g}' for number in numbers})[:4])} instead of {truth:.6g}"
    if not all(math.isfinite(number) for number in numbers):
        return Pattern("nan", text)
    if not any(numbers):
        return Pattern("zero", text)
    factors = {number / truth for number in numbers} if truth else set()
    for known in (size, 1 / size):
        if factors and all(abs(factor / known - 1) < 1e-6 for factor in factors):
            return Pattern("sum-for-mean", f"{text}: {known:g} times, by the number of ranks")
    if len(own) == len(numbers) and all(math.isclose(*pair, rel_tol=1e-6) for pair in zip(own, numbers, strict=True)):
        return Pattern("not-reduced", f"{text}: each rank has that of what it holds")
    if factors and max(factors) - min(factors) < 1e-6 * max(factors) and _is_simple(max(factors)):
        return Pattern("sum-for-mean", f"{text}: {max(factors):.6g} times")
    return Pattern("", text)


def _is_simple(factor: float) -> bool:
    """Return whether a factor counts something: it is a whole number, or one divided by one."""
    return any(abs(each - round(each)) < 1e-6 and 1 < round(each) <= 4096 for each in (factor, 1 / factor))


def ranks_text(ranks: Sequence[int]) -> str:
    """Return ranks as people write them."""
    names = [str(rank) for rank in sorted(ranks)]
    return f"rank {names[0]}" if len(names) == 1 else f"ranks {', '.join(names[:-1])} and {names[-1]}"


def _nan(evidence: Evidence) -> Pattern | None:
    for rank in evidence.wrong:
        bad = spoilt(evidence.held[rank], evidence.whole)
        if len(bad):
            index = index_text(int(bad[0]), evidence.whole.shape)
            return Pattern("nan", f"is not finite on {ranks_text(evidence.wrong)}, first at {index}")
    return None


def _zero(evidence: Evidence) -> Pattern | None:
    if all(not evidence.held[rank].values.any() for rank in evidence.wrong):
        return Pattern("zero", f"is zero on {ranks_text(evidence.wrong)}")
    return None


def _factor(evidence: Evidence) -> Pattern | None:
    """Look for a uniform factor that counts something: ranks, those of a group, microbatches."""
    factor = _uniform(evidence)
    if factor is None:
        return None
    location = ranks_text(evidence.wrong)
    for number, meaning in _meanings(evidence):
        for known, words in ((number, f"{number:g} times"), (1 / number, f"1/{number:g} of")):
            if number > 1 and abs(factor / known - 1) < 1 / evidence.times / 100:
                return Pattern("sum-for-mean", f"is {words} the plain model's on {location}: {meaning}")
    counts = any(_is_simple(abs(each)) for each in (factor, factor * evidence.size, factor / evidence.size))
    elements = max(len(evidence.held[rank].ids) for rank in evidence.wrong)
    # Any one number is a multiple of any other.
    return (
        Pattern("sum-for-mean", f"is {factor:.6g} times the plain model's on {location}")
        if counts and elements > 1
        else None
    )


def _other_factor(evidence: Evidence) -> Pattern | None:
    factor = _uniform(evidence)
    if factor is None or all(len(evidence.held[rank].ids) < 2 for rank in evidence.wrong):
        return None
    return Pattern("", f"is {factor:.6g} times the plain model's on {ranks_text(evidence.wrong)}")


def _uniform(evidence: Evidence) -> float | None:
    """Return the factor between the values and the truth, if it explains the deviation."""
    values = torch.cat([evidence.held[rank].values.double() for rank in evidence.wrong])
    expected = torch.cat([evidence.expected(rank) for rank in evidence.wrong])
    factor = multiple(values, expected)
    if not factor or not evidence.explains(lambda rank: evidence.expected(rank) * factor):
        return None
    return factor


def _meanings(evidence: Evidence) -> Iterator[tuple[float, str]]:
    """Yield the numbers that a factor may be, with what they count."""
    yield evidence.size, "the number of ranks"
    for name, groups in evidence.groups.items():
        yield len(groups[0]), f"the number of ranks in {name}"
    yield evidence.microbatches, "the number of microbatches"
    yield evidence.size * evidence.microbatches, "ranks times microbatches"


def _not_reduced(evidence: Evidence) -> Pattern | None:
    """Compare sums over groups of ranks with the truth."""
    by_name = [("all ranks", [sorted(evidence.held)]), *evidence.groups.items()]
    for name, groups in sorted(by_name, key=lambda item: (len(item[1][0]), item[0] == "all ranks")):
        mine = [group for group in groups if set(group) & set(evidence.wrong) and set(group) <= set(evidence.held)]
        if not mine or {rank for group in mine for rank in group} < set(evidence.wrong) or len(mine[0]) < 2:
            continue
        for factor in {1.0, 1 / len(mine[0]), 1 / evidence.size, 1 / evidence.microbatches}:
            if all(_sums_up(evidence, group, factor) for group in mine):
                over = name if name != "all ranks" else "ranks"
                each = " and ".join(ranks_text(group) for group in mine[:2])
                return Pattern("not-reduced", f"is not reduced over {over}: each of {each} has its own part")
    return None


def _sums_up(evidence: Evidence, group: Sequence[int], factor: float) -> bool:
    total = torch.zeros(evidence.whole.numel(), dtype=torch.float64)
    for rank in group:
        total.index_add_(0, evidence.held[rank].ids, evidence.held[rank].values.double())
    held = torch.cat([evidence.held[rank].ids for rank in group]).unique()
    expected = evidence.whole.reshape(-1)[held].double()
    if len(held) * 2 > sum(len(evidence.held[rank].ids) for rank in group):
        return False  # They hold different elements: nothing is to be summed.
    off = min(evidence.off(rank) for rank in group)
    return off > 0 and distance(total[held] * factor, expected) <= off / evidence.times


def _reduced_twice(evidence: Evidence) -> Pattern | None:
    """Write the gradient as a sum of those of the microbatches, each with a factor."""
    return next((found for pieces in evidence.pieces() if (found := _mixed(evidence, pieces)) is not None), None)


def _mixed(evidence: Evidence, pieces: Sequence[torch.Tensor]) -> Pattern | None:
    if len(pieces) < 2:
        return None

    def columns(rank: int) -> torch.Tensor:
        ids = evidence.held[rank].ids
        return torch.stack([piece.reshape(-1)[ids].double() for piece in pieces], dim=1)

    rank = evidence.wrong[0]
    solved = torch.linalg.lstsq(columns(rank), evidence.held[rank].values.double()[:, None]).solution[:, 0]
    if not torch.isfinite(solved).all() or not evidence.explains(lambda rank: columns(rank) @ solved):
        return None
    factors = [round(float(factor), 4) for factor in solved]
    formula = " + ".join(f"{factor:g} * g{number}" for number, factor in enumerate(factors, 1))
    location = ranks_text(evidence.wrong)
    counted = [number for number, factor in enumerate(factors, 1) if factor]
    if len(counted) == 1:
        return Pattern(
            "not-reduced",
            f"has the gradient of part {counted[0]} of {len(factors)} of the batch alone, on {location}",
        )
    if all(factor == 1 for factor in factors):
        return Pattern("", f"is the mean over parts of the batch, each of which counts alike, on {location}")
    words = f"is {formula} on {location}, with g1 of the first part of the batch"
    if all(earlier > later > 0 for earlier, later in itertools.pairwise(factors)):
        return Pattern("reduced-twice", f"{words}, which is reduced again with each that follows")
    return Pattern("", words)


def _stale(evidence: Evidence) -> Pattern | None:
    before = evidence.before
    if before is None or not evidence.explains(lambda rank: before.reshape(-1)[evidence.held[rank].ids]):
        return None
    return Pattern("stale", f"is that of the step before on {ranks_text(evidence.wrong)}")


def _other_parameter(evidence: Evidence) -> Pattern | None:
    for name, other in evidence.others.items():
        if other.shape != evidence.whole.shape:
            continue
        if evidence.explains(lambda rank, other=other: other.reshape(-1)[evidence.held[rank].ids]):  # type: ignore[misc]
            return Pattern("other-parameter", f"is {name} on {ranks_text(evidence.wrong)}")
    return None


def _shifted(evidence: Evidence) -> Pattern | None:
    """Look for the values at other positions: some rows further or back, around the end or beyond it."""
    parts = [(evidence.held[rank], evidence.off(rank) / evidence.times) for rank in evidence.wrong]
    if (found := moved(parts, evidence.whole)) is None:
        return None
    dimension, by = found
    way = "further" if by > 0 else "back"
    location = ranks_text(evidence.wrong)
    return Pattern(
        "shifted", f"is right but {count(abs(by), 'position')} {way} in dimension {dimension}, on {location}"
    )


def _rounded(evidence: Evidence) -> Pattern | None:
    """Ask whether all values can be written in a narrower dtype, and are as near as rounding to it leaves them."""
    for dtype in (torch.bfloat16, torch.float16, torch.float32):  # what fits the first fits the others, too
        limits = torch.finfo(dtype)

        def fits(rank: int, dtype: torch.dtype = dtype, eps: float = limits.eps) -> bool:
            values = evidence.held[rank].values.double()
            near = evidence.off(rank) <= 8 * eps * float(evidence.expected(rank).abs().max())
            return near and any(
                torch.equal((values * n).to(dtype).double(), values * n) for n in (1, evidence.size, 3)
            )

        narrower = all(limits.bits < torch.finfo(evidence.held[rank].values.dtype).bits for rank in evidence.wrong)
        if narrower and all(fits(rank) for rank in evidence.wrong):
            return Pattern("rounded", f"has gone through {short(dtype)} on {ranks_text(evidence.wrong)}")
    return None


def _from_index(evidence: Evidence) -> Pattern | None:
    limit = 1e-6 * float(evidence.whole.abs().max())
    parts = (
        (held.ids, (held.values.double() - evidence.expected(rank)).abs() > limit)
        for rank, held in evidence.held.items()
    )
    if (found := wrong_from(parts, evidence.whole.shape)) is None:
        return None
    dimension, first = found
    words = f"is right up to index {first - 1} of dimension {dimension}, and wrong from {first} on"
    return Pattern("from-index", words)


def _replicas_differ(evidence: Evidence) -> Pattern | None:
    correct = [rank for rank in evidence.held if rank not in evidence.wrong]
    mine = set(torch.cat([evidence.held[rank].ids for rank in evidence.wrong]).tolist())
    if any(mine & set(evidence.held[rank].ids.tolist()) for rank in correct):
        return Pattern(
            "replicas-differ", f"is right on {ranks_text(correct)} and wrong on {ranks_text(evidence.wrong)}"
        )
    for left, right in itertools.combinations(evidence.wrong, 2):
        first, second = evidence.held[left], evidence.held[right]
        if torch.equal(first.ids, second.ids):
            apart = distance(first.values.double(), second.values.double())
            if apart > min(evidence.off(left), evidence.off(right)) / evidence.times:
                return Pattern("replicas-differ", f"is wrong on {ranks_text(evidence.wrong)}, on each in another way")
    return None


_TESTS: tuple[Callable[[Evidence], Pattern | None], ...] = (
    _nan,
    _zero,
    _factor,
    _not_reduced,
    _stale,
    _reduced_twice,
    _other_parameter,
    _shifted,
    _rounded,
    _from_index,
    _replicas_differ,
    _other_factor,
)
