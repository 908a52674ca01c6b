"""Losses over pairs of rows, or a statistic of rows: each rank has its rows, and gathers the features of all.

They are written anew after their papers: InfoNCE as in CLIP (arXiv 2103.00020), Barlow Twins (arXiv 2103.03230).
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.parity.parallel.collectives import GatherForParts
from tests.parity.parallel.subject import Batch, Parallel


class PairLoss(nn.Module):
    """The loss of this rank's rows. A plain model has all rows: parallel ones have another ``gather``."""

    rank = 0

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        """Return all ranks' rows."""
        return x


class InfoNce(PairLoss):
    """A row's left side is to find its own right side among all rows', and the other way round."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        left, right = F.normalize(left, dim=-1), F.normalize(right, dim=-1)
        labels = self.labels(len(left))
        scores = (left @ self.gather(right).T, right @ self.gather(left).T)
        return sum(F.cross_entropy(self.scale.exp() * each, labels) for each in scores) / 2  # type: ignore[return-value]

    def labels(self, rows: int) -> torch.Tensor:
        return torch.arange(rows) + self.rank * rows


class Decorrelation(PairLoss):
    """Each feature of the left side is like the same one of the right side over all rows, and like no other."""

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        left, right = self.whitened(self.gather(left)), self.whitened(self.gather(right))
        return (left.T @ right / len(left) - torch.eye(left.shape[1], dtype=left.dtype)).square().sum()

    def whitened(self, x: torch.Tensor) -> torch.Tensor:
        return (x - x.mean(0)) / (x.var(0, unbiased=False) + 1e-3).sqrt()


class TwoSides(nn.Module):
    """Two encoders, and the loss inside of the model."""

    def __init__(self, vocabulary: int, loss: PairLoss) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Embedding(vocabulary, 6), nn.Linear(6, 4))
        self.right = nn.Sequential(nn.Embedding(vocabulary, 6), nn.Linear(6, 4))
        self.loss = loss

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.loss(torch.tanh(self.left(tokens)).mean(1), torch.tanh(self.right(tokens)).mean(1))
        return loss


class Contrastive(Parallel):
    """DDP with negatives of all ranks. One microbatch, since a loss sees the pairs of one."""

    microbatches = 1
    dtypes = ("float64", "float32")
    plain: ClassVar[type[PairLoss]] = InfoNce
    parallel: ClassVar[type[PairLoss]]

    def model(self) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(7)
            return TwoSides(self.transformer.vocabulary, self.plain())

    def parallelize(self, model: Any) -> Any:
        model.loss.__class__, model.loss.rank = self.parallel, self.rank
        return DistributedDataParallel(model)

    def loss(self, model: Any, batch: Batch) -> torch.Tensor:
        found: torch.Tensor = model(batch["tokens"])
        return found


class GatheringInfoNce(InfoNce):
    def gather(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = GatherForParts.apply(x, 0, None)
        return out


Contrastive.parallel = GatheringInfoNce


class GatheringDecorrelation(Decorrelation):
    def gather(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = GatherForParts.apply(x, 0, None)
        return out


class Decorrelated(Contrastive):
    """DDP with a statistic of all ranks' rows: each rank has the whole batch's loss."""

    plain = Decorrelation
    parallel: ClassVar[type[PairLoss]] = GatheringDecorrelation
