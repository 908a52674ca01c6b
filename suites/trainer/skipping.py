"""What a step of ``trainer`` needs that leaves out parameters: on some ranks, or in some microbatches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from everyrank.suites.moves.move import only_if
from everyrank.suites.trainer.outline import Outline


def skipping_needs(
    outline: Outline,
    skips: tuple[int, ...],
    skipped_by: tuple[int, ...],
    parts: int,
    skips_in: tuple[int, ...],
    by_turns: bool,
    parts_on: tuple[int, ...],
) -> Iterator[str]:
    yield from only_if(max(skips) < outline.count)
    if outline.missed:
        yield "ranks that differ after errors"
    if skips_in:
        yield "microbatches of some ranks"
        yield from only_if(max(skips_in) < parts)
    elif by_all(outline, skipped_by, by_turns):
        yield "parameters that no rank uses later"
        yield from only_if(not outline.fresh)  # the law is about parameters that were used before
    else:
        yield "parameters that some ranks use"
        if max((parts, *parts_on)) > 1:
            yield "microbatches of some ranks"


def skipping_in_needs(
    outline: Outline, skips: tuple[int, ...], skips_in: tuple[int, ...], parts: int
) -> Iterator[str]:
    if 0 in skips_in:
        yield "parameters that the first microbatch skips"
    if parts - 1 in skips_in:
        yield "parameters that the last microbatch skips"
    yield from only_if(skips)


def by_all(outline: Outline, skipped_by: tuple[int, ...], by_turns: bool) -> bool:
    """Return whether a parameter that is left out is left out by all ranks."""
    return not by_turns and len(skipped_by) in (0, outline.model.size)


def by_turns_needs(outline: Outline, skips: tuple[int, ...], skipped_by: tuple[int, ...]) -> Iterator[str]:
    yield from only_if(skips[1:] and not skipped_by and outline.model.size > 1)


def _param(number: int) -> Callable[[Outline], tuple[int, ...] | None]:
    """Return what chooses a parameter of the model, by its number or from the end."""
    return lambda outline: (range(outline.count)[number],) if outline.count else None


def _rank(number: int) -> Callable[[Outline], tuple[int, ...] | None]:
    return lambda outline: (range(outline.model.size)[number],) if outline.model.size > 1 else None


#: The first parameter goes unused on the last rank.
SOME_RANKS: Mapping[str, Any] = {"skips": _param(0), "skipped_by": _rank(-1)}

#: The first one goes unused on all.
NO_RANK: Mapping[str, Any] = {"skips": _param(0)}

#: Each rank leaves out another parameter.
TURNS: Mapping[str, Any] = {"skips": lambda outline: tuple(range(outline.count)) or None, "by_turns": True}

#: The last one goes unused on the first rank.
FIRST_RANK: Mapping[str, Any] = {"skips": _param(-1), "skipped_by": _rank(0)}
