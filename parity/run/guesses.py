"""Which part of the plain model's an output should be that differs and is cut: by how weights and others are cut."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping

import torch
from everyrank.parity.run.plain import PARAMETER, START
from everyrank.parity.run.store import Store
from everyrank.parity.values.dye import Holdings
from everyrank.parity.values.parts import Part
from everyrank.suites.compare.patterns.likeness import distance

#: Of how many parameters it is asked how they are cut, and into how many pieces an output may be.
_ASKED, _PIECES = 64, 64


def pieces_of_weights(holdings: Holdings, store: Store) -> dict[int, int]:
    """Return which piece of a cut weight this rank has, by the number of pieces."""
    marked: dict[str, torch.Tensor] = {}
    for share in holdings.shares:
        truth = store.get((PARAMETER, START, share.name))
        if truth is not None and (share.name in marked or len(marked) < _ASKED):
            share.plain.mark(marked.setdefault(share.name, torch.zeros(truth.shape, dtype=torch.bool)).view(-1))
    found: dict[int, Counter[int]] = {}
    for held in marked.values():
        for dimension, size in enumerate(held.shape):
            mine = held.movedim(dimension, 0).reshape(size, -1).any(1).nonzero().reshape(-1)
            length = len(mine)
            is_piece = 0 < length < size and size % length == 0 and int(mine[-1] - mine[0]) == length - 1
            if is_piece and int(mine[0]) % length == 0:
                found.setdefault(size // length, Counter())[int(mine[0]) // length] += 1
    return {count: numbers.most_common(1)[0][0] for count, numbers in found.items()}


def guessed(
    mine: torch.Tensor, expected: torch.Tensor, hints: Iterable[Part], pieces: Mapping[int, int]
) -> tuple[Part, torch.Tensor] | None:
    """Return the part that an output should be, with the truth there; None if its sizes are no pieces' of it."""
    if mine.ndim != expected.ndim:
        return None
    ways: list[list[torch.Tensor | None]] = []
    for dimension, (length, size) in enumerate(zip(mine.shape, expected.shape, strict=True)):
        if length == size:
            ways.append([None])
            continue
        if not 0 < length < size or size % length or size // length > _PIECES:
            return None
        count = size // length
        known = [
            indices
            for hint in hints
            if len(hint.indices) > dimension and hint.shape[dimension] == size
            for indices in [hint.indices[dimension]]
            if indices is not None and len(indices) == length
        ]
        every = [torch.arange(number * length, (number + 1) * length) for number in range(count)]
        ways.append([*known[:1]] or ([every[pieces[count]]] if count in pieces else [*every]))
    parts = [Part(indices, expected.shape) for indices in itertools.islice(itertools.product(*ways), _PIECES)]
    pairs = [(part, piece) for part in parts if (piece := part.select(expected)) is not None]
    return min(pairs, key=lambda pair: distance(mine, pair[1]), default=None)


def of_another_batch(
    mine: torch.Tensor, expected: torch.Tensor, parts: Iterable[Part | None]
) -> tuple[Part, torch.Tensor] | None:
    """Return the first of the parts that an output was in other batches, and that has its shape, with the truth."""
    pairs = ((part, part.select(expected)) for part in parts if part is not None)
    return next(((part, piece) for part, piece in pairs if piece is not None and piece.shape == mine.shape), None)
