"""Patterns of values that are none: not finite, or zero."""

from __future__ import annotations

from everyrank.suites.compare.patterns.evidence import AllRanks, OneRank
from everyrank.suites.compare.patterns.likeness import all_of, spoilt
from everyrank.suites.compare.patterns.pattern import Pattern
from everyrank.suites.compare.patterns.texts import index_text


class Nan(Pattern):
    """Values are not finite, where they should be.

    A rank has no token that counts, and its mean is 0 / 0 (OLMo-core#657): the batch of a test needs such a rank.
    Whole rows of a mask without a key give the same.
    """

    id = "nan"
    rogue = "divides-by-no-tokens"
    example = "parity: the loss is 4.8689 and nan instead of 4.86947 (step 1, fp64 and fp32)"

    def of_one_rank(self, seen: OneRank) -> str | None:
        bad = spoilt(all_of(seen.values), seen.expected)
        if not len(bad):
            return None
        first = int(bad[0])
        kind = "nan" if bool(seen.values.flatten()[first].isnan()) else "infinite"
        if len(bad) == seen.expected.numel():
            return f"{kind} everywhere"
        index = index_text(first, seen.expected.shape)
        return f"{kind} in {len(bad)} of {seen.expected.numel()} elements, first at {index}"

    def of_all_ranks(self, seen: AllRanks) -> str | None:
        bad = next((bad for rank in seen.wrong if len(bad := spoilt(seen.held[rank], seen.whole))), None)
        if bad is None:
            return None
        return f"is not finite on {seen.location}, first at {index_text(int(bad[0]), seen.whole.shape)}"


class Zero(Pattern):
    """All values are zero, where they should not be; of an update, the parameter has not moved.

    Gradients are cleared at the wrong time, an autograd function has no backward for an input, or a weight was never
    loaded. If no parameter moves at all, the optimizer has those of before `fully_shard` or of before the layers were
    cut (pytorch#149205).
    """

    id = "zero"
    rogue = "clears-the-positions"
    example = "parity: gradient of `positions.weight` is zero on ranks 0 and 1 (step 1, fp64 and fp32)"

    def of_one_rank(self, seen: OneRank) -> str | None:
        return None if seen.values.any() else "zero, and the reference is not"

    def of_all_ranks(self, seen: AllRanks) -> str | None:
        moves = any(seen.held[rank].values.any() for rank in seen.wrong)
        return None if moves else f"is zero on {seen.location}"


PATTERNS = (Nan(), Zero())
