"""What a step of ``trainer`` needs that leaves out parameters: on some ranks, or in some microbatches."""

from __future__ import annotations

from collections.abc import Iterator

from everyrank.suites.moves.move import only_if
from everyrank.suites.trainer.outline import Outline


def skipping_needs(
    outline: Outline, skips: tuple[int, ...], skipped_by: tuple[int, ...], parts: int, skips_in: tuple[int, ...]
) -> Iterator[str]:
    yield from only_if(max(skips) < outline.count)
    if outline.missed:
        yield "unused parameters after errors"
    if skips_in:
        yield "microbatches of some ranks"
        yield from only_if(max(skips_in) < parts)
    elif len(skipped_by) in (0, outline.model.size):
        yield "parameters that no rank uses later"
        yield from only_if(not outline.fresh)  # the law is about parameters that were used before
    else:
        yield "parameters that some ranks use"
        if parts > 1:
            yield "microbatches of some ranks"


def skipping_in_needs(
    outline: Outline, skips: tuple[int, ...], skips_in: tuple[int, ...], parts: int
) -> Iterator[str]:
    if 0 in skips_in:
        yield "parameters that the first microbatch skips"
    if parts - 1 in skips_in:
        yield "parameters that the last microbatch skips"
    yield from only_if(skips)
