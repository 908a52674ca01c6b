"""A linear layer whose rows are spread over the ranks of the default process group."""

from __future__ import annotations

import torch
import torch.distributed as dist


def rows_of(rank: int, size: int, features: int) -> slice:
    """The output features that a rank owns; the first ranks own one more where they do not divide evenly."""
    each, more = divmod(features, size)
    start = rank * each + min(rank, more)
    return slice(start, start + each + (rank < more))


class _Gather(torch.autograd.Function):
    """Every rank's columns, side by side. Backward: this rank's columns of the sum of all ranks' gradients."""

    @staticmethod
    def forward(ctx, mine, features):
        rank, size = dist.get_rank(), dist.get_world_size()
        ctx.mine = rows_of(rank, size, features)
        shards = [mine.new_empty(mine.shape[0], _length(rows_of(other, size, features))) for other in range(size)]
        # Shards differ in size, which all_gather does not allow on every backend: one broadcast each.
        shards[rank] = mine.contiguous()
        for owner, shard in enumerate(shards):
            dist.broadcast(shard, src=owner)
        return torch.cat(shards, dim=1)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient[:, ctx.mine], None


def _length(rows: slice) -> int:
    return rows.stop - rows.start


class ShardedLinear(torch.nn.Module):
    """As ``torch.nn.Linear``, with this rank's rows only. What is minimised is the sum of all ranks' losses."""

    def __init__(self, whole: torch.nn.Linear) -> None:
        super().__init__()
        self.features = whole.out_features
        rows = rows_of(dist.get_rank(), dist.get_world_size(), self.features)
        self.weight = torch.nn.Parameter(whole.weight.detach()[rows].clone())
        self.bias = torch.nn.Parameter(whole.bias.detach()[rows].clone())

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return _Gather.apply(torch.nn.functional.linear(batch, self.weight, self.bias), self.features)
