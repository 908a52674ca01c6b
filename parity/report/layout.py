"""Which part of a tensor each rank holds, as a picture needs it: rectangles along two of its dimensions."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

import torch
from everyrank.model.parity import ParityMapPart, ParityRegionPart
from everyrank.parity.values.dye import Elements, Strided
from everyrank.parity.values.parts import Part

#: Indices of one dimension, in pieces: the first, and the one after the last.
Runs = tuple[tuple[int, int], ...]
#: A part of a tensor: the indices of each dimension.
Block = tuple[Runs, ...]

#: How many elements are looked at that stand in no regular order, and in how many pieces they may be.
_MOST_ELEMENTS, _MOST_PIECES = 1 << 22, 1 << 12
#: Into how many cells the edges of all ranks' parts may divide a picture.
_MOST_CELLS = 1 << 12


def of_elements(elements: Elements, shape: Sequence[int]) -> list[Block] | None:
    """Return the blocks that elements of a flat tensor make up in its shape; None if they are too many."""
    if isinstance(elements, Strided):
        if (block := _cut_out(elements, shape)) is not None:
            return [block]
        if elements.strides == (1,):
            return list(_of_range(elements.start, elements.start + elements.sizes[0], shape))
    return _of_ids(elements.ids(), shape) if elements.count <= _MOST_ELEMENTS else None


def of_part(part: Part, shape: Sequence[int]) -> list[Block] | None:
    """Return the blocks of a part of an output; None if they are too many."""
    whole = [((0, size),) for size in shape or (1,)]
    mine = [None if indices is None else runs_of(indices) for indices in part.indices]
    if not part.flattened:
        known = [every if runs is None else runs for runs, every in zip(mine, whole, strict=False)]
        return [(*known, *whole[len(known) :])]
    rest = tuple(every if runs is None else runs for runs, every in zip(mine[1:], whole[2:], strict=False))
    first = part.indices[0]
    if first is None:
        return [(whole[0], whole[1], *rest)]
    blocks = _of_ids(first, shape[:2])
    return None if blocks is None else [(*block, *rest) for block in blocks]


def picture(held: Mapping[int, Sequence[Block]], shape: Sequence[int], *, partial: bool = False) -> ParityMapPart:
    """Return the map of a tensor from the blocks that each rank holds."""
    shape = list(shape) or [1]
    blocks = [block for each in held.values() for block in each]
    cut = [axis for axis, size in enumerate(shape) if any(block[axis] != ((0, size),) for block in blocks)]
    drawn = _drawn(cut, len(shape))
    also = [axis for axis in cut if axis not in drawn]
    if len(drawn) == 1:
        # A vector is a row.
        held = {rank: [(((0, 1),), *block) for block in each] for rank, each in held.items()}
        regions = _regions(held, (1, *shape), (0, 1))
    else:
        regions = _regions(held, shape, (drawn[0], drawn[1]))
    return ParityMapPart(shape, drawn, regions, also, partial)


def _drawn(cut: Sequence[int], dimensions: int) -> list[int]:
    """Return the dimensions that are drawn: those that are cut before others, the first before the last."""
    others = [axis for axis in range(dimensions) if axis not in cut]
    return sorted([*cut, *others][: min(2, dimensions)])


# -- blocks ----------------------------------------------------------------------------------------------------------


def _cut_out(elements: Strided, shape: Sequence[int]) -> Block | None:
    """Return the block of elements that are cut out along dimensions, in whichever order these come."""
    steps = _steps(shape)
    rest, runs = elements.start, []
    for step in steps:
        runs.append((rest // step, rest // step + 1))
        rest %= step
    for size, stride in zip(elements.sizes, elements.strides, strict=True):
        if size == 1:
            continue
        axis = next((axis for axis, step in enumerate(steps) if step == stride and shape[axis] > 1), None)
        if axis is None or runs[axis][1] - runs[axis][0] > 1 or runs[axis][0] + size > shape[axis]:
            return None
        runs[axis] = (runs[axis][0], runs[axis][0] + size)
    return tuple((run,) for run in runs)


def _steps(shape: Sequence[int]) -> list[int]:
    """Return how far apart neighbours are in a flat tensor, along each dimension."""
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]


def _of_range(start: int, end: int, shape: Sequence[int]) -> Iterator[Block]:
    """Yield the blocks of neighbours in the flat tensor: the end of a row, whole rows, the start of a row."""
    if start >= end:
        return
    if len(shape) < 2:
        yield (((start, end),),) if shape else ()
        return
    row = math.prod(shape[1:])
    first, last = -(-start // row), end // row
    if first > last:
        index = start // row
        yield from _in_row(index, start - index * row, end - index * row, shape)
        return
    if start % row:
        yield from _in_row(first - 1, start % row, row, shape)
    if first < last:
        yield (((first, last),), *(((0, size),) for size in shape[1:]))
    if end % row:
        yield from _in_row(last, 0, end % row, shape)


def _in_row(index: int, start: int, end: int, shape: Sequence[int]) -> Iterator[Block]:
    for block in _of_range(start, end, shape[1:]):
        yield (((index, index + 1),), *block)


def _of_ids(ids: torch.Tensor, shape: Sequence[int]) -> list[Block] | None:
    pieces = runs_of(ids)
    if len(pieces) > _MOST_PIECES:
        return None
    return joined([block for start, end in pieces for block in _of_range(start, end, shape)], len(shape))


def runs_of(indices: torch.Tensor) -> Runs:
    """Return indices in any order as pieces."""
    ordered = indices.unique()
    if not len(ordered):
        return ()
    ends = (ordered.diff() != 1).nonzero().reshape(-1)
    starts = [int(ordered[0]), *ordered[ends + 1].tolist()]
    return tuple(zip(starts, [each + 1 for each in [*ordered[ends].tolist(), int(ordered[-1])]], strict=True))


def joined(blocks: list[Block], dimensions: int) -> list[Block]:
    """Return the blocks with those as one that differ in a single dimension."""
    for axis in range(dimensions):
        alike: dict[Block, list[tuple[int, int]]] = {}
        for block in blocks:
            alike.setdefault((*block[:axis], *block[axis + 1 :]), []).extend(block[axis])
        blocks = [(*rest[:axis], _adjoined(runs), *rest[axis:]) for rest, runs in alike.items()]
    return blocks


def _adjoined(runs: list[tuple[int, int]]) -> Runs:
    found: list[tuple[int, int]] = []
    for start, end in sorted(runs):
        if found and found[-1][1] >= start:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((start, end))
    return tuple(found)


# -- regions ---------------------------------------------------------------------------------------------------------


def _regions(
    held: Mapping[int, Sequence[Block]], shape: Sequence[int], drawn: tuple[int, int]
) -> list[ParityRegionPart]:
    """Return rectangles that cover two dimensions, each with the ranks that hold it; none if there are too many."""
    down, across = ([*_edges(held, axis, shape[axis])] for axis in drawn)
    if (len(down) - 1) * (len(across) - 1) > _MOST_CELLS:
        return []
    cells = [[set[int]() for _ in across[1:]] for _ in down[1:]]
    for rank, blocks in held.items():
        for block in blocks:
            for rows, columns in itertools.product(block[drawn[0]], block[drawn[1]]):
                for row in range(bisect_left(down, rows[0]), bisect_left(down, rows[1])):
                    for column in range(bisect_left(across, columns[0]), bisect_left(across, columns[1])):
                        cells[row][column].add(rank)
    return [
        ParityRegionPart(list(ranks), [down[top], down[bottom], across[left], across[right]])
        for top, bottom, left, right, ranks in _rectangles([[tuple(sorted(each)) for each in row] for row in cells])
    ]


def _edges(held: Mapping[int, Sequence[Block]], axis: int, size: int) -> list[int]:
    edges = {edge for blocks in held.values() for block in blocks for run in block[axis] for edge in run}
    return sorted(edges | {0, size})


def _rectangles(cells: list[list[tuple[int, ...]]]) -> Iterator[tuple[int, int, int, int, tuple[int, ...]]]:
    """Yield rectangles of equal cells: top, bottom, left, right, and what the cells are."""
    started: dict[tuple[int, int, tuple[int, ...]], int] = {}
    for number, row in enumerate([*cells, []]):
        found = dict.fromkeys(_stretches(row))
        for stretch, top in [*started.items()]:
            if stretch not in found:
                left, right, ranks = stretch
                yield top, number, left, right, ranks
                del started[stretch]
        for stretch in found:
            started.setdefault(stretch, number)


def _stretches(row: list[tuple[int, ...]]) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """Yield where equal neighbours begin and end in a row."""
    left = 0
    for ranks, group in itertools.groupby(row):
        right = left + len([*group])
        yield left, right, ranks
        left = right
