"""A small model with its batch and loss, and a call of ``parity``, of which a test changes what it is about."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from everyrank.parity import Report, parity
from torch import nn
from torch.nn.parallel import DistributedDataParallel

Batch = dict[str, torch.Tensor]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.last(torch.tanh(self.first(rows)))
        return output


def batch(step: int, rows: int = 8) -> Batch:
    generator = torch.Generator().manual_seed(step)
    return {"rows": torch.randn(rows, 4, generator=generator), "labels": torch.arange(rows) % 3}


def loss(model: Any, batch: Batch) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch["rows"]), batch["labels"])


def compare(**changed: Any) -> Report:
    arguments = {"model": Net, "parallelize": DistributedDataParallel, "batch": batch, "loss": loss, "steps": 2}
    return parity(**{**arguments, **changed})


def own_rows(batch: Batch) -> Batch:
    """Return this rank's rows."""
    return {name: value.chunk(dist.get_world_size())[dist.get_rank()] for name, value in batch.items()}


def over_ranks(loss: torch.Tensor) -> torch.Tensor:
    """Return the mean of all ranks' losses."""
    total = loss.detach().clone()
    dist.all_reduce(total)
    return total / dist.get_world_size()
