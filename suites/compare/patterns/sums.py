"""Patterns of a sum over ranks or over microbatches that lacks a part, or has one too often."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from everyrank.suites.compare.patterns.evidence import AllRanks
from everyrank.suites.compare.patterns.likeness import distance
from everyrank.suites.compare.patterns.pattern import Pattern
from everyrank.suites.compare.patterns.texts import ranks_text


class NotReduced(Pattern):
    """Each rank has its own part of a sum over ranks, or one part of the batch alone.

    Nobody has added the parts up. A parameter that every rank has whole, but uses on its own tokens or heads, needs
    a reduction, and was left out of the rule that names those: a norm under sequence parallelism (Megatron-LM#1446),
    the activation's parameters of Apertus under transformers' tensor parallelism
    ([finding](findings/apertus-activation.md)), a module outside of the wrapper (AReaL#313). With DDP it is
    `no_sync()` around the last microbatch, too (FunASR#3472). Of an output it means a row-wise product whose sum is
    missing.
    """

    id = "not-reduced"
    rogue = "never-syncs"
    example = (
        "parity: gradient of `head.bias` is not reduced over ranks: each of ranks 0 and 1 has its own part "
        "(step 1, fp64 and fp32), as 35 others of its kind"
    )

    def of_all_ranks(self, seen: AllRanks) -> str | None:
        by_name = [("all ranks", [sorted(seen.held)]), *seen.groups.items()]
        for name, groups in sorted(by_name, key=lambda item: (len(item[1][0]), item[0] == "all ranks")):
            mine = [group for group in groups if set(group) & set(seen.wrong) and set(group) <= set(seen.held)]
            if not mine or {rank for group in mine for rank in group} < set(seen.wrong) or len(mine[0]) < 2:
                continue
            for factor in {1.0, 1 / len(mine[0]), 1 / seen.size, 1 / seen.microbatches}:
                if all(_sums_up(seen, group, factor) for group in mine):
                    over = name if name != "all ranks" else "ranks"
                    ranks = " and ".join(ranks_text(group) for group in mine[:2])
                    return f"is not reduced over {over}: each of {ranks} has its own part"
        return self._of_a_part(seen)

    def _of_a_part(self, seen: AllRanks) -> str | None:
        counted = [number for number, factor in enumerate(seen.mixture, 1) if factor]
        if len(counted) != 1:
            return None
        part = f"part {counted[0]} of {len(seen.mixture)}"
        return f"has the gradient of {part} of the batch alone, on {seen.location}"


def _sums_up(seen: AllRanks, group: Sequence[int], factor: float) -> bool:
    total = torch.zeros(seen.whole.numel(), dtype=torch.float64)
    for rank in group:
        total.index_add_(0, seen.held[rank].ids, seen.held[rank].values.double())
    held = torch.cat([seen.held[rank].ids for rank in group]).unique()
    expected = seen.whole.reshape(-1)[held].double()
    if len(held) * 2 > sum(len(seen.held[rank].ids) for rank in group):
        return False  # They hold different elements: nothing is to be summed.
    off = min(seen.off(rank) for rank in group)
    return off > 0 and distance(total[held] * factor, expected) <= off / seen.times


class ReducedTwice(Pattern):
    """A part of the gradient is reduced twice: the first microbatch is reduced again with each that follows.

    A hook that runs when a gradient has been accumulated reduces `.grad`, in which the microbatches before it are
    reduced already: the gradient is a sum of those of the microbatches with falling factors. With one microbatch it
    is right, and the loss is right to the last bit with any number: so trains every model of transformers with norms
    over heads ([finding](findings/qwen3-head-norms.md)). Reduce what comes in (`Tensor.register_hook`), or reduce
    once before the step.
    """

    id = "reduced-twice"
    rogue = "reduces-what-is-accumulated"
    example = (
        "parity: gradient of `head.bias` is 4 * g1 + 2 * g2 on ranks 0 and 1, with g1 of the first part of the "
        "batch, which is reduced again with each that follows (step 1, fp64 and fp32), as 35 others of its kind"
    )

    def of_all_ranks(self, seen: AllRanks) -> str | None:
        falls = all(earlier > later > 0 for earlier, later in itertools.pairwise(seen.mixture))
        return f"{_formula(seen)}, which is reduced again with each that follows" if seen.mixture and falls else None


class Mixture(Pattern):
    """The gradient is another sum of those of the microbatches."""

    def of_all_ranks(self, seen: AllRanks) -> str | None:
        if not seen.mixture:
            return None
        if all(factor == 1 for factor in seen.mixture):
            return f"is the mean over parts of the batch, each of which counts alike, on {seen.location}"
        return _formula(seen)


def _formula(seen: AllRanks) -> str:
    formula = " + ".join(f"{factor:g} * g{number}" for number, factor in enumerate(seen.mixture, 1))
    return f"is {formula} on {seen.location}, with g1 of the first part of the batch"


PATTERNS = (NotReduced(), ReducedTwice(), Mixture())
