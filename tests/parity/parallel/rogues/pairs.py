"""Rogues of losses over pairs of rows, and of statistics over ranks' rows."""

from __future__ import annotations

import torch
import torch.distributed as dist

from tests.parity.parallel.collectives import Gather
from tests.parity.parallel.rogue import Rogues
from tests.parity.parallel.subjects.pairs import (
    Contrastive,
    Decorrelated,
    Decorrelation,
    GatheringDecorrelation,
    GatheringInfoNce,
    InfoNce,
)

ROGUES = Rogues()


def gathered(x: torch.Tensor) -> torch.Tensor:
    """Return all ranks' rows without a gradient, and this rank's with one."""
    parts = [torch.zeros_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x)
    parts[dist.get_rank()] = x
    return torch.cat(parts)


class _Detached(InfoNce):
    def gather(self, x: torch.Tensor) -> torch.Tensor:
        return gathered(x)


@ROGUES.add(
    "common mistake, and CLIP's loss with local_loss and without gather_with_grad: negatives have no gradient",
    "activation-gradient",
    "right",
)
class NegativesHaveNoGradient(Contrastive):
    parallel = _Detached


class _DetachedStatistics(Decorrelation):
    def gather(self, x: torch.Tensor) -> torch.Tensor:
        return gathered(x)


@ROGUES.add(
    "common mistake: the whole loss on each rank, whose gradients of own rows are averaged, and not summed",
    "gradient",
    "left.* right.*",
    "sum-for-mean",
)
class AveragesWhatIsAPart(Decorrelated):
    parallel = _DetachedStatistics


class _OwnSlice(GatheringInfoNce):
    def gather(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = Gather.apply(x, 0, None)
        return out


@ROGUES.add(
    "common mistake: a gather whose backward returns this rank's slice, without a sum over ranks",
    "activation-gradient",
    "right",
)
class GathersBackItsOwnSlice(Contrastive):
    parallel = _OwnSlice


class _TimesRanks(GatheringInfoNce):
    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return super().forward(left, right) * dist.get_world_size()


@ROGUES.add(
    "common mistake: a loss that is multiplied by the ranks although its gather has a gradient",
    "forward loss",
    "loss",
    "sum-for-mean",
)
class MultipliesByTheRanks(Contrastive):
    parallel = _TimesRanks


class _OwnNegatives(InfoNce):
    def labels(self, rows: int) -> torch.Tensor:
        return torch.arange(rows)


@ROGUES.add("common mistake: negatives are this rank's rows alone", "forward", "loss", "batch-statistics")
class NegativesAreItsOwn(Contrastive):
    parallel = _OwnNegatives


class _FirstLabels(GatheringInfoNce):
    def labels(self, rows: int) -> torch.Tensor:
        return torch.arange(rows)


@ROGUES.add("common mistake: labels do not count the rows of the ranks before", "forward", "loss")
class LabelsAreTheFirstRanks(Contrastive):
    parallel = _FirstLabels


@ROGUES.add(
    "common mistake: a statistic of a batch is taken over this rank's rows", "forward", "loss", "batch-statistics"
)
class StatisticsAreItsOwn(Decorrelated):
    parallel = Decorrelation


class _OwnMoments(GatheringDecorrelation):
    def whitened(self, x: torch.Tensor) -> torch.Tensor:
        size, rank = dist.get_world_size(), dist.get_rank()
        own = x.chunk(size)[rank]
        return (x - own.mean(0)) / (own.var(0, unbiased=False) + 1e-3).sqrt()


@ROGUES.add(
    "common mistake: rows of all ranks are normalized by the mean and the variance of this one's", "forward", "loss"
)
class NormalizesByItsOwnMoments(Decorrelated):
    parallel = _OwnMoments
