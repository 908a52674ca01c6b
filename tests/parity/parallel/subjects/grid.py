"""A grid of 2 x 2: rows over one dimension, and cut layers over the other."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from tests.parity.parallel.collectives import summed
from tests.parity.parallel.subject import Batch
from tests.parity.parallel.subjects.megatron import MegatronClipped, MegatronSequence


class Grid(MegatronClipped):
    """Data and tensor parallelism with a clip that bites. Neighbours (0, 1 and 2, 3) share one model."""

    sizes = (4,)

    def __init__(self) -> None:
        super().__init__()
        self.tensor_groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        self.data_groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
        self.parts_group = self.tensor_groups[self.rank // 2]
        self.replicas_group = self.data_groups[self.rank % 2]

    def made_groups(self) -> list[Any]:
        tensor, data = self.tensor_groups[self.rank // 2], self.data_groups[self.rank % 2]
        return [tensor, data]

    def mine(self, batch: Batch) -> Batch:
        return {key: value.chunk(2)[self.data_rank()] for key, value in batch.items()}

    def data_rank(self) -> int:
        return self.rank // 2

    def finish(self, model: nn.Module) -> None:
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad.copy_(self.mean(parameter.grad))

    def mean(self, gradient: torch.Tensor) -> torch.Tensor:
        return summed(gradient, self.replicas_group) / 2

    def report(self, loss: torch.Tensor) -> torch.Tensor:
        return summed(loss, self.replicas_group) / 2


class GridSequence(Grid, MegatronSequence):
    """Data and tensor parallelism with sequence parallelism: gradients of norms are reduced over both."""

    def finish(self, model: nn.Module) -> None:
        MegatronSequence.finish(self, model)
        Grid.finish(self, model)
