"""Sparse gradients, as embeddings get them: to each shard those of its rows, to the reference all of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from everyrank.suites.sharded_optimizer.arena import Arena, Parameter, coarse


def give_some_rows(place: Arena, parameters: Sequence[Parameter], step: int, repeated: bool = False) -> None:
    """Gradients of some rows only: the first, the last, and one that changes with the step.

    ``repeated``: as an embedding that is looked up in any order, and twice for the first row and the last.
    """
    for param in parameters:
        length = param.twin.shape[0]
        rows = sorted({0, length - 1, step % length})
        if repeated:
            rows = [length - 1, *rows[:-1][::-1], length - 1, 0]
        give_rows(place, param, step, rows)


def give_rows(place: Arena, param: Parameter, step: int, rows: Sequence[int]) -> None:
    """A gradient of these rows, the same for all ranks."""
    values = _values(place, param, step, rows)
    param.twin.grad = sparse_rows(rows, values, param.twin.shape)
    for tensor, index in param.pieces:
        held = range(param.twin.shape[0]) if param.whole else range(index[0].start, index[0].stop)
        mine = [number for number, row in enumerate(rows) if row in held]
        local = [rows[number] - held.start for number in mine]
        columns = () if param.whole else (slice(None), *index[1:])
        tensor.grad = sparse_rows(local, values[mine][columns], tensor.shape)


def give_rows_of_ranks(place: Arena, param: Parameter, step: int, rows_of_ranks: Sequence[Sequence[int]]) -> None:
    """A gradient of each rank's own for a whole parameter. The reference gets their mean."""
    given = [
        sparse_rows(rows, coarse(_values(place, param, step, rows, rank + 1)), param.twin.shape)
        for rank, rows in enumerate(rows_of_ranks)
    ]
    param.pieces[0][0].grad = given[place.rank]
    param.twin.grad = torch.stack(given).sum(0) / place.size


def _values(place: Arena, param: Parameter, step: int, rows: Sequence[int], rank: int = 0) -> torch.Tensor:
    """New values for these rows; where one is repeated, others each time."""
    data = place.data(param, step, rank)
    return torch.stack([data[row] * (1 + number) for number, row in enumerate(rows)])


def sparse_rows(rows: Sequence[int], values: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """A sparse gradient: these values for these rows, which are in any order, and added up where one is repeated."""
    index = torch.tensor([list(rows)], dtype=torch.int64, device=values.device)
    made = torch.sparse_coo_tensor(index, values, tuple(shape), check_invariants=False)
    return made if len(set(rows)) < len(rows) or list(rows) != sorted(rows) else made.coalesce()
