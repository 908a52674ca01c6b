"""A linear layer whose rows are spread over the ranks of the default process group."""

from __future__ import annotations

import torch
import torch.distributed as dist


def rows_of(rank: int, size: int, features: int) -> slice:
    """Return the output features that a rank owns; if they do not divide evenly, the first ranks own one more."""
    share, extra = divmod(features, size)
    start = rank * share + min(rank, extra)
    return slice(start, start + share + (rank < extra))


class _Gather(torch.autograd.Function):
    """Joins the columns of all ranks. Its backward returns this rank's columns of the sum of all ranks' gradients."""

    @staticmethod
    def forward(ctx, columns, features):
        rank, size = dist.get_rank(), dist.get_world_size()
        ctx.own_columns = rows_of(rank, size, features)
        lengths = [_length(rows_of(other, size, features)) for other in range(size)]
        shards = [columns.new_empty(columns.shape[0], length) for length in lengths]
        # all_gather does not allow shards of different sizes on every backend: each shard has its own broadcast.
        shards[rank] = columns.contiguous()
        for owner, shard in enumerate(shards):
            dist.broadcast(shard, src=owner)
        return torch.cat(shards, dim=1)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient[:, ctx.own_columns], None


def _length(rows: slice) -> int:
    return rows.stop - rows.start


class ShardedLinear(torch.nn.Module):
    """Like ``torch.nn.Linear``, with only this rank's rows. Gradients are those of the sum of all ranks' losses."""

    def __init__(self, whole: torch.nn.Linear) -> None:
        super().__init__()
        self.features = whole.out_features
        rows = rows_of(dist.get_rank(), dist.get_world_size(), self.features)
        self.weight = torch.nn.Parameter(whole.weight.detach()[rows].clone())
        self.bias = torch.nn.Parameter(whole.bias.detach()[rows].clone())

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return _Gather.apply(torch.nn.functional.linear(batch, self.weight, self.bias), self.features)
