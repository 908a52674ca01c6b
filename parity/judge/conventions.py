"""What correct code does in its own way: modules that stand for those of other ranks, and a factor of gradients."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from everyrank.parity.run.activations import Seen
from everyrank.parity.run.plain import FORWARD
from everyrank.parity.values.watch import Output
from everyrank.suites.compare.patterns.fit import Fit


def stand_ins(seen: list[Seen]) -> frozenset[str]:
    """Return the modules that stand for what another rank holds, as `nn.Identity` in a stage of a pipeline.

    They give on what they get on one rank, which is no output of the plain model's, and on another they do not.
    """
    passing, working = set(), set()
    for each in seen:
        for kind, output in each.unmatched:
            if kind == FORWARD and output in each.passed_on:
                passing.add(output[0])
        working |= {output[0] for output in each.whole if output not in each.passed_on}
    return frozenset(passing & working)


def without(seen: Seen, stand_ins: frozenset[str]) -> Seen:
    """Return what a rank has seen without the modules that stand for what another rank holds."""
    gone = {output for output in seen.passed_on if output[0] in stand_ins}
    if not gone:
        return seen
    unmatched = {seat: value for seat, value in seen.unmatched.items() if seat[1] not in gone}
    errors = {seat: error for seat, error in seen.unmatched_errors.items() if seat[1] not in gone}
    return replace(seen, unmatched=unmatched, unmatched_errors=errors)


def convention(seen: list[Seen]) -> float | None:
    """Return the factor that most gradients of outputs have: a convention is one for all outputs and ranks."""
    factors = [factor for each in seen for factor in each.factors.values()]
    counts = Counter(f"{factor:.6g}" for factor in factors)
    return max(factors, key=lambda factor: (counts[f"{factor:.6g}"], factor == 1), default=None)


def other_factors(seen: list[Seen], usual: float | None) -> dict[Output, Fit]:
    """Return what is said of outputs whose gradients have another factor in each part."""
    found: dict[Output, dict[int, list[float]]] = {}
    for rank, each in enumerate(seen):
        for seat, factor in each.factors.items():
            found.setdefault(each.whole[seat[1]], {}).setdefault(rank, []).append(factor / (usual or 1.0))
    fits = {}
    for output, by_rank in found.items():
        if all(is_factor(factor, factors[0]) for factors in by_rank.values() for factor in factors):
            continue
        texts = [
            f"{' and '.join(f'{factor:.4g}' for factor in by_rank[rank][:4])} on rank {rank}" for rank in by_rank
        ]
        words = f"is the plain model's times {', '.join(texts[:4])}, where other outputs have one factor in all parts"
        fits[output] = Fit("", words)
    return fits


def is_factor(factor: float, other: float) -> bool:
    """Return whether two factors are the same."""
    return abs(factor / other - 1) < 1e-6
