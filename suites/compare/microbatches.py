"""What a wrong step may make of the gradients of its microbatches: a mean that lacks a part, or counts one twice."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from everyrank.suites.compare.reference import Gradients, mean, sum_in_order

#: The gradients of each microbatch of each rank: of one parameter, and of all.
Parts = list[list[torch.Tensor | None]]
AllParts = list[list[Gradients]]


def total_of(parts: list[torch.Tensor | None]) -> torch.Tensor | None:
    present = [part for part in parts if part is not None]
    return sum_in_order(present) if present else None


def mean_of(parts: Parts, rank: int = 0) -> torch.Tensor | None:
    return mean([total_of(own) for own in parts])


def scaled(gradient: torch.Tensor | None, number: float) -> torch.Tensor | None:
    return None if gradient is None else gradient * number


def first_reduced_twice(parts: Parts, rank: int) -> torch.Tensor | None:
    """Reduce the accumulated gradient after each microbatch, by a sum whose parts were divided before."""
    last = mean([own[-1] for own in parts])
    before = scaled(mean_of([own[:-1] for own in parts]), len(parts))
    return total_of([before, last])


def power_from(number: int) -> int:
    """Return the power of two that is this number, or the next above it."""
    return 1 << (number - 1).bit_length()


def mean_of_rounded(dtype: torch.dtype, parts: Parts, rank: int) -> torch.Tensor | None:
    totals = [total_of(own) for own in parts]
    return mean([None if total is None else _rounded(total, dtype) for total in totals])


def _rounded(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return value if value.is_complex() else value.to(dtype).to(value.dtype)


def left_out(rank_left: int, parts: Parts, rank: int) -> torch.Tensor | None:
    return mean([None if number == rank_left else total_of(own) for number, own in enumerate(parts)])


def one_for_another(twice: int, lost: int, parts: Parts, rank: int) -> torch.Tensor | None:
    """Take one rank's gradient in the place of another's."""
    return mean([total_of(parts[twice if number == lost else number]) for number in range(len(parts))])


def all_but_the_last_are_its_own(parts: Parts, rank: int) -> torch.Tensor | None:
    return total_of([*parts[rank][:-1], mean([own[-1] for own in parts])])


def reduced_again_each_time(parts: Parts, rank: int) -> torch.Tensor | None:
    """Add up over the ranks, after each microbatch but the last, all that was accumulated until then."""
    held = [own[0] for own in parts]
    for number in range(1, len(parts[0])):
        total = total_of(held)
        held = [total_of([total, own[number]]) for own in parts]
    return mean(held)


def by_rows(rows: Sequence[int], parts: Parts, rank: int) -> torch.Tensor | None:
    return mean(
        [scaled(total_of(own), own_rows * len(rows) / sum(rows)) for own, own_rows in zip(parts, rows, strict=True)]
    )


def clip_scale(gradients: Sequence[torch.Tensor | None], limit: float, counted: int = 1) -> float:
    """Return what clips gradients to a norm, in which each is counted this many times."""
    norms = [gradient.norm() for gradient in gradients if gradient is not None]
    norm = torch.stack(norms).norm() * counted**0.5 if norms else torch.zeros(())
    return float((limit / (norm + 1e-6)).clamp(max=1.0))


def _clipped(gradients: list[Gradients], limit: float) -> list[Gradients]:
    """Return the gradients of one rank's microbatches, scaled together to a norm of at most the limit."""
    scale = clip_scale([total_of([part[name] for part in gradients]) for name in gradients[0]], limit)
    return [{name: scaled(value, scale) for name, value in each.items()} for each in gradients]


def each_part_clipped(parts: AllParts, limit: float) -> AllParts:
    return [[_clipped([part], limit)[0] for part in own] for own in parts]


def each_rank_clipped(parts: AllParts, limit: float) -> AllParts:
    return [_clipped(own, limit) for own in parts]
