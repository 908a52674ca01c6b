"""Find out which part of a tensor of the plain model a rank's tensor is, by its values in fp64.

A rank may have some rows of the batch, a part of the sequence (in one piece, zigzag or striped), some features, or
any of these together. Equal values decide; where several parts have equal values, the order of the ranks' own does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from everyrank.suites.compare.patterns.likeness import AT_ONCE, distance


@dataclass(frozen=True, eq=False)
class Part:
    """A part of a tensor: for each dimension the indices, or None for all."""

    indices: tuple[torch.Tensor | None, ...]
    shape: torch.Size
    """The shape of the whole, after `flattened`."""
    flattened: bool = False
    """Whether the first two dimensions of the whole are one here."""

    def select(self, whole: torch.Tensor) -> torch.Tensor | None:
        """Return this part of a tensor, or None if it has another shape."""
        if self.flattened:
            if whole.ndim < 2:
                return None
            whole = whole.flatten(0, 1)
        if whole.ndim < len(self.indices) or (whole.ndim > len(self.indices) and self.flattened):
            return None
        # A part of a batch's rows and positions is one of what a module makes of them.
        for dimension, (indices, size) in enumerate(zip(self.indices, self.shape, strict=True)):
            if indices is None:
                continue
            if whole.shape[dimension] != size:
                return None
            whole = whole.index_select(dimension, indices)
        return whole

    def moved(self, shape: torch.Size) -> Iterator[Part]:
        """Yield the parts that have the same positions in another dimension, behind that of heads or before rows."""
        for dimension, indices in enumerate(self.indices):
            for other, size in enumerate(shape):
                if indices is not None and other != dimension and size == self.shape[dimension]:
                    yield Part(tuple(indices if each == other else None for each in range(len(shape))), shape)
                    if dimension and len(self.indices) > 1 and self.indices[0] is not None and other:
                        rows = {0: self.indices[0], other: indices}
                        yield Part(tuple(rows.get(each) for each in range(len(shape))), shape)

    def mark(self, seen: torch.Tensor) -> None:
        """Mark the elements of the whole that this part has."""
        if self.flattened:
            seen = seen.flatten(0, 1)  # a view: the tensor is contiguous
        every = [torch.arange(size) for size in seen.shape]
        mine = [size if indices is None else indices for indices, size in zip(self.indices, every, strict=False)]
        seen[torch.meshgrid(*mine, *every[len(mine) :], indexing="ij") if every else ()] = True


def whole(shape: torch.Size) -> Part:
    """Return the part that is all of a tensor."""
    return Part((None,) * len(shape), shape)


def agree(mine: torch.Tensor, expected: torch.Tensor, limit: float) -> float | None:
    """Return by how much the values differ, if that is no more than the limit."""
    if mine.shape != expected.shape:
        return None
    off = distance(mine, expected)
    return off if off <= limit else None


def largest(values: torch.Tensor) -> float:
    """Return the largest absolute value; NaN if there is one."""
    pieces = values.detach().reshape(-1).split(AT_ONCE)
    return float(torch.stack([piece.abs().max() for piece in pieces]).max()) if values.numel() else 0.0


def locate(
    mine: torch.Tensor, expected: torch.Tensor, limit: float, hints: Iterable[Part] = ()
) -> tuple[Part, float] | None:
    """Return the part of a tensor whose values are these, and by how much they differ; or None."""
    for hint in hints:
        piece = hint.select(expected)
        off = None if piece is None else agree(mine, piece, limit)
        if off is not None:
            return hint, off
    if mine.shape == expected.shape:
        off = agree(mine, expected, limit)
        return None if off is None else (whole(mine.shape), off)
    flattened = expected.ndim == mine.ndim + 1 and expected.ndim > 1
    if flattened:
        expected = expected.flatten(0, 1)
    if mine.ndim != expected.ndim or not mine.numel():
        return None
    cut = [dimension for dimension in range(mine.ndim) if mine.shape[dimension] != expected.shape[dimension]]
    if any(mine.shape[dimension] > expected.shape[dimension] for dimension in cut):
        return None
    for found in _search(mine, expected, cut or [0], limit):
        indices = tuple(found.get(dimension) for dimension in range(mine.ndim))
        off = agree(mine, _select(expected, found), limit)
        if off is not None:
            return Part(indices, expected.shape, flattened), off
    return None


def _select(tensor: torch.Tensor, indices: dict[int, torch.Tensor]) -> torch.Tensor:
    for dimension, chosen in indices.items():
        tensor = tensor.index_select(dimension, chosen)
    return tensor


def _search(
    mine: torch.Tensor, expected: torch.Tensor, cut: list[int], limit: float
) -> Iterator[dict[int, torch.Tensor]]:
    """Yield indices that may be right: of the last dimensions by trying the usual cuts, of the first by value."""
    first, *others = cut
    if others:
        last = others[-1]
        for chosen in _usual_cuts(expected.shape[last], mine.shape[last]):
            narrowed = expected.index_select(last, chosen)
            for found in _search(mine, narrowed, [first, *others[:-1]], limit):
                yield {**found, last: chosen}
        return
    indices = _matching(mine, expected, first, limit)
    if indices is not None:
        yield {first: indices}


def _usual_cuts(size: int, length: int) -> Iterator[torch.Tensor]:
    """Yield the ways in which a dimension is cut: in pieces, zigzag in halves of pieces, striped."""
    for start in range(0, size - length + 1, length):
        yield torch.arange(start, start + length)
    half = length // 2
    if half and length % 2 == 0:
        for start in range(0, size // 2 - half + 1, half):
            end = size - start
            yield torch.cat([torch.arange(start, start + half), torch.arange(end - half, end)])
    if size % length == 0:
        for start in range(size // length):
            yield torch.arange(start, size, size // length)


def _matching(mine: torch.Tensor, expected: torch.Tensor, dimension: int, limit: float) -> torch.Tensor | None:
    """Return for each slice of ours the index of the expected slice that is equal to it."""
    ours = mine.movedim(dimension, 0).reshape(mine.shape[dimension], -1).double()
    theirs = expected.movedim(dimension, 0).reshape(expected.shape[dimension], -1).double()
    weights = torch.rand(ours.shape[1], dtype=torch.float64, generator=torch.Generator().manual_seed(1)) + 0.5
    off = ((ours @ weights)[:, None] - (theirs @ weights)[None, :]).abs()
    near = off <= limit * float(weights.sum())
    if not near.any(dim=1).all():
        return None
    chosen: list[int] = []
    for row in near:
        following = chosen[-1] + 1 if chosen else 0
        if following >= len(row) or not row[following]:
            following = int(row.nonzero()[0])
        chosen.append(following)
    return torch.tensor(chosen)
