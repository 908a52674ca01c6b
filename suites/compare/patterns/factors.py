"""Patterns of a uniform factor, of all values or of what a step has changed in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from everyrank.suites.compare.patterns.evidence import CLEARLY, AllRanks, OneRank
from everyrank.suites.compare.patterns.likeness import multiple
from everyrank.suites.compare.patterns.pattern import Pattern

#: The factors that are looked for besides the number of ranks; and one divided by each.
_FACTORS = (2, 3, 4, 5, 6, 7, 8)


class SumForMean(Pattern):
    """A uniform factor that counts ranks or microbatches: a sum where a mean belongs, or a mean where a sum does.

    A loss that is a part's share of the whole batch's mean wants a sum over ranks; a loss that is the mean over a
    part wants a mean. Both are right, and a mixture of them is not: one path of torchtitan divided and the other did
    not (torchtitan#2972), and gradients of norms under sequence parallelism were averaged where each rank has a part
    of a sum (gpt-neox#1259). AdamW hides a uniform factor from the loss curve almost entirely; a clip and weight
    decay do not.
    """

    id = "sum-for-mean"
    rogue = "factor-is-forgotten"
    example = (
        "parity: gradient of `head.bias` is 1/2 of the plain model's on ranks 0 and 1: the number of ranks, or of "
        "microbatches (step 1, fp64 and fp32), as 34 others of its kind"
    )

    def of_one_rank(self, seen: OneRank, fewest: int = 2) -> str | None:
        number, target = _multiple(seen, fewest)
        if seen.ranks > 1 and number == seen.ranks:
            return f"{number:g} times {target}, as a sum over the {seen.ranks} ranks"
        if seen.ranks > 1 and number == 1 / seen.ranks:
            return f"1/{seen.ranks} of {target}, as if divided by the {seen.ranks} ranks once too often"
        return None

    def of_all_ranks(self, seen: AllRanks) -> str | None:
        factor = _uniform(seen)
        if factor is None:
            return None
        for number, meaning in _meanings(seen):
            for known, text in ((number, f"{number:g} times"), (1 / number, f"1/{number:g} of")):
                if number > 1 and abs(factor / known - 1) < 1 / seen.times / 100:
                    return f"is {text} the plain model's on {seen.location}: {meaning}"
        counts = any(counts_something(abs(number)) for number in (factor, factor * seen.size, factor / seen.size))
        elements = max(len(seen.held[rank].ids) for rank in seen.wrong)
        # Any number is a multiple of any other.
        return _times(factor, seen) if counts and elements > 1 else None


class Factor(Pattern):
    """A uniform factor that does not count ranks: 2, 1/3 and the like, or the other sign.

    A learning rate or a scale of the loss that is applied twice, or not at all: a step is the reference's, times what
    an option has changed. Parity names no such factor by an id, but its text has the number.
    """

    id = "factor"
    rogue = "fixes-the-rate"
    example = (
        "[fail] fixes-the-rate trainer/parity.schedule[ws3]\n"
        "  step 2, first.weight: 2 times the reference's step (factor)"
    )

    def of_one_rank(self, seen: OneRank, fewest: int = 2) -> str | None:
        number, target = _multiple(seen, fewest)
        if not number or (seen.ranks > 1 and number in (seen.ranks, 1 / seen.ranks)):
            return None
        if number == -1.0:
            return f"{target} with the other sign"
        return f"{number:g} times {target}" if number > 1 else f"1/{round(1 / number)} of {target}"


class OwnTokens(Pattern):
    """Divided by a rank's own number of tokens, and not by the whole batch's.

    The loss is a sum over tokens, gradients are added up, and the divisor is that of before the reduction: it is
    another one on each rank, or rank 0's on all. Reduce the number of tokens, too, and divide by the sum. (A mean on
    each rank, and the mean of these, is a sum of the ranks' gradients with wrong weights, and the report says that.)
    """

    id = "own-tokens"
    rogue = "divides-by-its-own-tokens"
    example = (
        "parity: gradient of `head.bias` is divided by a rank's own number of tokens: 1.00552 times the plain "
        "model's on rank 0 and 0.994536 on rank 1 (step 1, fp64 and fp32), as 35 others of its kind"
    )

    def of_all_ranks(self, seen: AllRanks) -> str | None:
        for numbers in seen.tokens:
            factors = _of_tokens(seen, numbers)
            if factors:
                each = [f"{factor:.6g} on rank {rank}" for rank, factor in factors.items()]
                first, *others = each
                first = first.replace(" on", " times the plain model's on")
                return f"is divided by a rank's own number of tokens: {' and '.join([first, *others])}"
        return None


class OtherFactor(Pattern):
    """A uniform factor that counts nothing."""

    def of_all_ranks(self, seen: AllRanks) -> str | None:
        factor = _uniform(seen)
        if factor is None or all(len(seen.held[rank].ids) < 2 for rank in seen.wrong):
            return None
        return _times(factor, seen)


def counts_something(factor: float) -> bool:
    """Return whether a factor counts something: it is a whole number, or one divided by one."""
    return any(abs(number - round(number)) < 1e-6 and 1 < round(number) <= 4096 for number in (factor, 1 / factor))


def _multiple(seen: OneRank, fewest: int) -> tuple[float, str]:
    """Return by what number the reference or its step was multiplied, and which; 0 if by none that is looked for."""
    for start, target in ((torch.zeros_like(seen.expected), "the reference"), (seen.before, "the reference's step")):
        if start is not None and (number := _multiple_from(start.double(), seen, fewest)):
            return number, target
    return 0.0, ""


def _multiple_from(start: torch.Tensor, seen: OneRank, fewest: int) -> float:
    way, gone = seen.expected.double() - start, seen.values.double() - start
    if int((way.abs() > CLEARLY * seen.slack * float(way.abs().max())).sum()) < fewest:
        return 0.0
    ratio = multiple(gone, way)
    numbers = {-1.0, *map(float, (*_FACTORS, *[seen.ranks] * (seen.ranks > 1)))}
    nearest = min(numbers | {1 / number for number in numbers}, key=lambda number: abs(number - ratio))
    return nearest if seen.is_like(start + nearest * way) else 0.0


def _uniform(seen: AllRanks) -> float | None:
    """Return the factor between the values and the truth, if it explains the deviation."""
    values = torch.cat([seen.held[rank].values.double() for rank in seen.wrong])
    expected = torch.cat([seen.expected(rank) for rank in seen.wrong])
    factor = multiple(values, expected)
    return factor if factor and seen.explains(lambda rank: seen.expected(rank) * factor) else None


def _of_tokens(seen: AllRanks, numbers: Sequence[float]) -> dict[int, float]:
    """Return the factor of each wrong rank, if these are what its own number of tokens makes of the whole's."""
    whole = sum(numbers)
    if len(numbers) != seen.size or not all(numbers) or len(set(numbers)) == 1:
        return {}
    found = {rank: multiple(seen.held[rank].values, seen.expected(rank)) for rank in seen.wrong}
    for own in ({rank: numbers[rank] for rank in found}, dict.fromkeys(found, numbers[0])):
        for scale in (1.0, 1 / seen.size):
            meant = {rank: scale * whole / own[rank] for rank in found}
            alike = all(abs(found[rank] / meant[rank] - 1) < 1 / seen.times / 100 for rank in found)
            if alike and seen.explains(lambda rank, meant=meant: seen.expected(rank) * meant[rank]):  # type: ignore[misc]
                return found
    return {}


def _times(factor: float, seen: AllRanks) -> str:
    return f"is {factor:.6g} times the plain model's on {seen.location}"


def _meanings(seen: AllRanks) -> Iterator[tuple[float, str]]:
    """Yield the numbers that a factor may be, with what they count."""
    both = seen.size == seen.microbatches
    yield seen.size, f"the number of ranks{', or of microbatches' if both else ''}"
    for name, groups in seen.groups.items():
        yield len(groups[0]), f"the number of ranks in {name}"
    yield seen.microbatches, "the number of microbatches"
    yield seen.size * seen.microbatches, "ranks times microbatches"


PATTERNS = (SumForMean(), Factor())
