"""Sparse gradients as embeddings get them: each shard gets those of its rows, the reference gets all."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from everyrank.suites.sharded_optimizer.arena import Arena, Parameter, averageable


def give_rows(arena: Arena, param: Parameter, step: int, rows: Sequence[int]) -> None:
    """Give a gradient of these rows, the same on all ranks."""
    values = _values(arena, param, step, rows)
    param.twin.grad = sparse_rows(rows, values, param.twin.shape)
    for tensor, index in param.pieces:
        held = range(param.twin.shape[0]) if param.whole else range(index[0].start, index[0].stop)
        mine = [number for number, row in enumerate(rows) if row in held]
        local = [rows[number] - held.start for number in mine]
        columns = () if param.whole else (slice(None), *index[1:])
        tensor.grad = sparse_rows(local, values[mine][columns], tensor.shape)


def give_rows_of_ranks(arena: Arena, param: Parameter, step: int, rows_of_ranks: Sequence[Sequence[int]]) -> None:
    """Give a whole parameter a different gradient on each rank, and the reference their mean.

    The mean is exact, whether a subject adds or divides first: an optimizer that divides a gradient by its own size,
    as Adagrad does, makes a large step of what rounding leaves of a sum that is zero.
    """
    given = [
        sparse_rows(rows, averageable(_values(arena, param, step, rows, rank + 1), arena.size), param.twin.shape)
        for rank, rows in enumerate(rows_of_ranks)
    ]
    param.pieces[0][0].grad = given[arena.rank]
    param.twin.grad = torch.stack(given).sum(0) / arena.size


def _values(arena: Arena, param: Parameter, step: int, rows: Sequence[int], rank: int = 0) -> torch.Tensor:
    """Return new values for these rows; a repeated row has another value each time."""
    data = arena.data(param, step, rank)
    times = torch.arange(1, len(rows) + 1, device=data.device).view(-1, *[1] * (data.dim() - 1))
    return data[list(rows)] * times


def sparse_rows(rows: Sequence[int], values: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Return a sparse gradient with these values for these rows, in any order. Values of a repeated row add up."""
    index = torch.tensor([list(rows)], dtype=torch.int64, device=values.device)
    # Columns of a larger tensor are copied, for torch takes the stride of a single row for its length where it adds
    # it to a dense tensor, and writes past the row's end. contiguous() would leave such a row as it is.
    values = values.clone(memory_format=torch.contiguous_format)
    made = torch.sparse_coo_tensor(index, values, tuple(shape), check_invariants=False)
    return made if len(set(rows)) < len(rows) or list(rows) != sorted(rows) else made.coalesce()
