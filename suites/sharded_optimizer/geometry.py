"""Geometries: the cuts of a tensor into blocks, and the rank of each block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Block:
    """One shard: its rank, its position in the whole, and its size."""

    rank: int
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def index(self) -> tuple[slice, ...]:
        return tuple(slice(start, start + size) for start, size in zip(self.offsets, self.sizes, strict=True))


Shape = tuple[int, ...]
#: shape, dim, world size -> blocks
Geometry = Callable[[Shape, int, int], list[Block]]


def along(shape: Shape, dim: int, owners: Sequence[int], sizes: Sequence[int]) -> list[Block]:
    """Return blocks of these sizes along one dimension, in order."""
    blocks, start = [], 0
    for rank, size in zip(owners, sizes, strict=True):
        offsets = tuple(start if d == dim else 0 for d in range(len(shape)))
        blocks.append(Block(rank, offsets, tuple(size if d == dim else length for d, length in enumerate(shape))))
        start += size
    return blocks


def chunks(length: int, parts: int) -> list[int]:
    """Return lengths of chunks as torch.chunk cuts them, with empty chunks at the end for the last ranks."""
    full = -(-length // parts)
    return [max(0, min(full, length - full * number)) for number in range(parts)]


def past_the_end(length: int, parts: int) -> bool:
    """Return whether the last of this many equal chunks would begin beyond the end."""
    return -(-length // parts) * (parts - 1) > length


def chunked(shape: Shape, dim: int, size: int) -> list[Block]:
    """Cut into equal chunks in rank order; the last may be smaller, or empty."""
    return along(shape, dim, range(size), chunks(shape[dim], size))


def permuted(shape: Shape, dim: int, size: int) -> list[Block]:
    """Put the first chunk on rank 1 and the last on rank 0."""
    return along(shape, dim, [(number + 1) % size for number in range(size)], chunks(shape[dim], size))


def several(shape: Shape, dim: int, size: int) -> list[Block]:
    """Cut into twice as many chunks as ranks, dealt in turn: no two shards of a rank are adjacent."""
    return along(shape, dim, [number % size for number in range(2 * size)], chunks(shape[dim], 2 * size))


def lopsided(shape: Shape, dim: int, size: int) -> list[Block]:
    """Give one row to each rank except the last, which has all others."""
    return along(shape, dim, range(size), [*[1] * (size - 1), shape[dim] - size + 1])


def last_without(shape: Shape, dim: int, size: int) -> list[Block]:
    """Leave the last rank without any shard."""
    return along(shape, dim, range(size - 1), chunks(shape[dim], size - 1))


def first_without(shape: Shape, dim: int, size: int) -> list[Block]:
    """Leave rank 0 without any shard."""
    return along(shape, dim, range(1, size), chunks(shape[dim], size - 1))


def on_rank_1(shape: Shape, dim: int, size: int) -> list[Block]:
    """Put all elements into the shard of rank 1; every other rank has a shard without elements."""
    return along(shape, dim, range(size), [shape[dim] if rank == 1 else 0 for rank in range(size)])


def grid(shape: Shape, dim: int, size: int) -> list[Block]:
    """Cut along both dimensions, two by two, and deal the blocks in turn."""
    tops, lefts = chunks(shape[0], 2), chunks(shape[1], 2)
    corners = [(row, column) for row in range(2) for column in range(2)]
    return [
        Block(number % size, (row * tops[0], column * lefts[0]), (tops[row], lefts[column]))
        for number, (row, column) in enumerate(corners)
    ]


#: How a parameter of a law is cut, by the name that it states.
CUTS: dict[str, Geometry] = {
    each.__name__: each
    for each in (chunked, permuted, several, lopsided, last_without, first_without, on_rank_1, grid)
}

#: Cuts by the names of points, with the lengths of the cut dimension of three parameters for a world of three.
GEOMETRIES: dict[str, tuple[str, tuple[int, int, int]]] = {
    "even": ("chunked", (6, 3, 9)),
    "uneven": ("chunked", (7, 8, 5)),
    "one-more": ("chunked", (4, 7, 10)),
    "one-less": ("chunked", (5, 8, 2)),
    "fewer-rows-than-ranks": ("chunked", (2, 1, 2)),
    "rank-without-rows": ("chunked", (4, 6, 4)),
    "several-shards": ("several", (6, 12, 7)),
    "permuted": ("permuted", (6, 5, 9)),
    "lopsided": ("lopsided", (6, 5, 4)),
    "last-without-shard": ("last_without", (4, 6, 5)),
    "first-without-shard": ("first_without", (4, 6, 5)),
    "grid": ("grid", (4, 5, 3)),
}
