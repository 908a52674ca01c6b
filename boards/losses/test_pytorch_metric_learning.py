"""pytorch-metric-learning: its losses under ``DistributedLossWrapper``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
import torch.distributed as dist
from everyrank.suites import conformance

pytest.importorskip("pytorch_metric_learning", reason="pip install pytorch-metric-learning")
from pytorch_metric_learning import losses, miners
from pytorch_metric_learning.utils.distributed import DistributedLossWrapper, DistributedMinerWrapper

from losses.contract import subjects


def one_batch(loss: torch.Tensor) -> torch.Tensor:
    """Return the loss with its gradient, as a number without the factor that makes up for DDP's mean over ranks."""
    size = dist.get_world_size() if dist.is_initialized() else 1
    return loss - (1 - 1 / size) * loss.detach()


KINDS: dict[str, Callable[[], Any]] = {
    "contrastive": losses.ContrastiveLoss,
    "ntxent": losses.NTXentLoss,
    "triplet": losses.TripletMarginLoss,
}


def embedded(kind: str, efficient: bool) -> Callable[..., torch.Tensor]:
    loss = DistributedLossWrapper(KINDS[kind](), efficient=efficient)
    return lambda left, right, labels, scale: one_batch(loss(left, labels))


def with_references(efficient: bool) -> Callable[..., torch.Tensor]:
    loss = DistributedLossWrapper(losses.NTXentLoss(), efficient=efficient)
    return lambda left, right, labels, scale: one_batch(
        # Labels that are one tensor would be taken for those of one side.
        loss(left, labels, ref_emb=right, ref_labels=labels.clone())
    )


def mined(efficient: bool) -> Callable[..., torch.Tensor]:
    loss = DistributedLossWrapper(losses.ContrastiveLoss(), efficient=efficient)
    miner = DistributedMinerWrapper(miners.MultiSimilarityMiner(), efficient=efficient)
    return lambda left, right, labels, scale: one_batch(loss(left, labels, miner(left, labels)))


def named(name: str, efficient: bool) -> str:
    return f"{name}-efficient" if efficient else name


BOTH = (False, True)
LOSSES = {
    **{named(kind, each): partial(embedded, kind, each) for kind, each in product(KINDS, BOTH)},
    **{named("references", each): partial(with_references, each) for each in BOTH},
    **{named("miner", each): partial(mined, each) for each in BOTH},
}


#: Of NTXent the mean of the ranks' losses is right, and gradients alone are not.
CAUSES = {
    "efficient": [f"{name}-efficient" for name in ("contrastive", "triplet", "references", "miner")],
    "efficient-gradient": ["ntxent-efficient"],
}


@pytest.mark.filterwarnings("ignore")
@conformance(*subjects("pytorch-metric-learning", LOSSES, CAUSES))
def test_pytorch_metric_learning(case: Any) -> None:
    case.run()
