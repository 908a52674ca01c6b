"""Placements of outputs that are not as claimed, by which parts of the plain model's outputs ranks have."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import torch
from everyrank.parity.judge.steps import Deviation
from everyrank.parity.run.activations import LIMIT
from everyrank.parity.run.claimed import OutputClaim
from everyrank.parity.run.plain import FORWARD, scale
from everyrank.parity.run.store import Store
from everyrank.parity.values.claims import Axis, cut_by, is_sum
from everyrank.parity.values.parts import Part, largest, locate
from everyrank.parity.values.watch import Output
from everyrank.suites.compare.patterns.fit import Fit
from everyrank.suites.compare.patterns.likeness import distance
from everyrank.suites.compare.patterns.texts import ranks_text


def wrong_outputs(store: Store, every: Sequence[Sequence[OutputClaim]]) -> list[Deviation]:
    """Return the outputs whose values refute what ranks claim of them, in the order of the plain model's run."""
    by_number: dict[tuple[Output, int], dict[int, OutputClaim]] = {}
    for rank, claims in enumerate(every):
        for each in claims:
            by_number.setdefault(each.number, {})[rank] = each
    found: dict[Output, Deviation] = {}
    for claims_of in by_number.values():
        for first in claims_of.values():
            for axis in first.claim.axes():
                for group in axis.groups:
                    having = {rank: claims_of[rank] for rank in group if rank in claims_of}
                    words = _of_group(store, axis, having) if len(having) == len(group) else ""
                    if words:
                        found.setdefault(first.output, _deviation(first.output, words, group))
    order = [*store.notes[FORWARD]]
    return sorted(found.values(), key=lambda each: order.index(each.key[2]))


def _deviation(output: Output, words: str, ranks: tuple[int, ...]) -> Deviation:
    key = (FORWARD, 0, output)
    return Deviation("forward", output[0], 0, 0.0, LIMIT, ranks, key, words, Fit("wrong-annotation", words))


def _of_group(store: Store, axis: Axis, having: Mapping[int, OutputClaim]) -> str:
    """Return what is wrong of a claim on the ranks along an axis, or nothing if that is not certain."""
    first = next(iter(having.values()))
    if any(
        (each.output, each.claim.placements) != (first.output, first.claim.placements) for each in having.values()
    ):
        return ""
    key, ranks = (FORWARD, 0, first.output), ranks_text(tuple(having))
    truth, near = store[key], LIMIT * scale(store, key)
    parts = [each.part for each in having.values() if each.part is not None]
    values = [each.value.double() for each in having.values() if each.value is not None]
    if len(values) == len(having) and not axis.placement.is_partial():
        return f"{axis.text}, and is a term of a sum on {ranks}" if _is_sum(values, truth, near) else ""
    pieces = [piece for part in parts if (piece := part.select(truth)) is not None]
    if len(pieces) < len(having):
        return ""
    is_same = all(_are_near(pieces[0], other, near) for other in pieces[1:])
    cut = _cut(parts)
    if axis.placement.is_replicate():
        seen = "is not the same" if len(cut) != 1 else f"is Shard({cut[0]})"
        return "" if is_same else f"{axis.text}, and {seen} on {ranks}"
    if axis.placement.is_partial():
        is_whole = is_sum(axis.placement) and is_same and largest(pieces[0]) > 1e3 * near
        return f"{axis.text}, and is no term of a sum, but the same on {ranks}" if is_whole else ""
    claimed = cut_by(axis.placement)
    if is_same:
        # Parity itself may have given the same rows to all ranks.
        is_whole = bool(claimed) and all(_is_whole(part, claimed) for part in parts)
        return f"{axis.text}, and is the same on {ranks}" if is_whole else ""
    is_other = len(cut) == 1 and cut[0] != claimed
    return f"{axis.text}, and is Shard({cut[0]}) on {ranks}" if is_other else ""


def _is_sum(values: Sequence[torch.Tensor], truth: torch.Tensor, near: float) -> bool:
    if len({value.shape for value in values}) > 1:
        return False
    total = torch.stack([*values]).sum(0)
    return largest(total) > 1e3 * near and locate(total, truth, near) is not None


def _are_near(mine: torch.Tensor, other: torch.Tensor, near: float) -> bool:
    return mine.shape == other.shape and distance(mine, other) <= near


def _cut(parts: Sequence[Part]) -> list[int]:
    """Return the dimensions in which ranks have other indices."""
    return [
        dimension
        for dimension in range(min(len(part.indices) for part in parts))
        if any(not _same(*pair, dimension) for pair in itertools.pairwise(parts))
    ]


def _same(mine: Part, other: Part, dimension: int) -> bool:
    left, right = (_indices(part, dimension) for part in (mine, other))
    return torch.equal(left, right)


def _indices(part: Part, dimension: int) -> torch.Tensor:
    found = part.indices[dimension]
    return torch.arange(part.shape[dimension]) if found is None else found


def _is_whole(part: Part, dimension: int | None) -> bool:
    return (
        dimension is not None
        and dimension < len(part.indices)
        and len(_indices(part, dimension)) == part.shape[dimension]
    )
