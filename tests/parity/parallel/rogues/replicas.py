"""Rogues of DDP and of what a loop does around it."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from tests.parity.parallel.collectives import summed
from tests.parity.parallel.parts import IGNORED, Dropout
from tests.parity.parallel.rogue import Rogues
from tests.parity.parallel.subject import Batch, Stepped
from tests.parity.parallel.subjects.replicas import (
    Buffers,
    Ddp,
    DdpAccumulating,
    DdpClipped,
    DdpDropout,
    DdpRecomputed,
    DdpTied,
    DdpTokenless,
    SynchronizedNormalizer,
)
from tests.parity.parallel.transformer import Sizes

ROGUES = Rogues()


@ROGUES.add("FunASR#3472: the microbatch of the step is in no_sync, too", "gradient", "*", "not-reduced")
class NeverSyncs(DdpAccumulating):
    def backward_context(self, model: Any, is_last: bool) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = model.no_sync()
        return context


@ROGUES.add("FunASR#3472: the first microbatch is synchronized in place of the last", "gradient", "*", "not-reduced")
class SyncsTheFirstMicrobatchOnly(DdpAccumulating):
    def backward_context(self, model: Any, is_last: bool) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = model.no_sync() if is_last else contextlib.nullcontext()
        return context


@ROGUES.add("transformers#34191, torchtune#1875: a mean of means over unequal numbers of tokens", "loss")
class MeanOfMeans(Ddp):
    def share(self, losses: torch.Tensor, batch: Batch) -> torch.Tensor:
        return losses.sum() / (batch["labels"] != IGNORED).sum().clamp(min=1)


@ROGUES.add("OLMo-core#657: all labels of a rank are ignored, so its mean is 0/0", "loss", pattern="nan")
class DividesByNoTokens(DdpTokenless):
    def share(self, losses: torch.Tensor, batch: Batch) -> torch.Tensor:
        return losses.sum() / (batch["labels"] != IGNORED).sum()


@ROGUES.add(
    "common mistake: the loss is not divided by the number of microbatches",
    "loss gradient activation-gradient",
    pattern="sum-for-mean",
)
class ForgetsTheMicrobatches(DdpAccumulating):
    def scaled(self, loss: torch.Tensor, parts: int) -> torch.Tensor:
        return loss


@ROGUES.add(
    "transformers#48167 (in evaluation): the loss is reported as a sum over ranks, and trained on as a mean",
    "loss",
    pattern="sum-for-mean",
)
class ReportsASum(DdpAccumulating):
    def report(self, loss: torch.Tensor) -> torch.Tensor:
        return summed(loss, self.replicas_group)


@ROGUES.add("common mistake: the last microbatch is dropped", "loss gradient forward", pattern="shifted")
class DropsTheLastMicrobatch(DdpAccumulating):
    def cut(self, batch: Batch) -> list[Batch]:
        return [super().cut(batch)[0]] * self.microbatches


@ROGUES.add(
    "common mistake: no DistributedSampler, so all ranks train on the same rows", "forward loss", pattern="shifted"
)
class SameRowsEverywhere(DdpAccumulating):
    def mine(self, batch: Batch) -> Batch:
        return {key: value.chunk(self.size)[0] for key, value in batch.items()}


@ROGUES.add(
    "common mistake: the loss is scaled by the number of ranks, as if DDP added up",
    "gradient activation-gradient loss",
    pattern="sum-for-mean",
)
class ScalesForASum(DdpAccumulating):
    def scaled(self, loss: torch.Tensor, parts: int) -> torch.Tensor:
        return loss * self.size / parts


@ROGUES.add(
    "slapo#21, tt-metal#55947: every rank draws its masks for rows 0, 1, ...",
    "forward",
    "blocks.*",
    pattern="from-index",
)
class MasksByLocalRow(DdpDropout):
    def loss(self, model: Any, batch: Batch) -> torch.Tensor:
        local = batch["row"] % (self.rows // self.size)
        return super().loss(model, {**batch, "row": local if isinstance(model, self.wrapper) else batch["row"]})

    wrapper = nn.parallel.DistributedDataParallel


class _Forgetful(Dropout):
    calls = 0

    def forward(self, x: torch.Tensor, positions: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(x, positions, rows + (self.calls - 1) % 2)


@ROGUES.add(
    "common mistake (preserve_rng_state=False): a recomputed block draws another mask than the block did",
    "activation-gradient gradient",
    "blocks.*",
)
class RecomputesWithAnotherMask(DdpRecomputed):
    transformer = Sizes(recomputed=True, dropout=0.25)

    def parallelize(self, model: Any) -> Any:
        for block in model.blocks.values():
            block.dropout.__class__ = _Forgetful
        return super().parallelize(model)


@ROGUES.add(
    "common mistake: a weight is copied, so its twin goes its own way",
    "gradient",
    "tokens.weight head.weight",
    pattern="not-reduced",
)
class Unties(DdpTied):
    def parallelize(self, model: Any) -> Any:
        model.head.weight = nn.Parameter(model.head.weight.detach().clone())
        return super().parallelize(model)


@ROGUES.add(
    "common mistake: each rank has its own seed, and nothing is broadcast", "initialization", "*", "replicas-differ"
)
class OwnSeeds(DdpAccumulating):
    def parallelize(self, model: Any) -> Any:
        made = super().parallelize(model)
        with torch.no_grad():
            made.module.head.weight.add_(0.01 * self.rank)
        return made


@ROGUES.add(
    "common mistake: DDP is built with init_sync=False on loaded and unloaded ranks",
    "initialization",
    "norm.*",
    "zero",
)
class LoadsAllButTheLastNorm(Ddp):
    def parallelize(self, model: Any) -> Any:
        nn.init.zeros_(model.norm.bias)
        return super().parallelize(model)


@ROGUES.add(
    "common mistake: layer 1 is loaded from layer 0's entry", "initialization", "blocks.1.ln2.*", "other-parameter"
)
class LoadsANeighboursNorm(Ddp):
    def parallelize(self, model: Any) -> Any:
        model.blocks["1"].ln2.load_state_dict(model.blocks["0"].ln2.state_dict())
        return super().parallelize(model)


class _Local(SynchronizedNormalizer):
    def over_ranks(self, mean: torch.Tensor) -> torch.Tensor:
        return mean


@ROGUES.add(
    "common mistake: BatchNorm is not converted to SyncBatchNorm", "forward", "normalizer", "batch-statistics"
)
class NormalizesItsOwnRows(Buffers):
    normalizer = _Local


class _WithoutBackward(SynchronizedNormalizer):
    def over_ranks(self, mean: torch.Tensor) -> torch.Tensor:
        return mean + (summed(mean, None) / torch.distributed.get_world_size() - mean).detach()


@ROGUES.add(
    "pytorch#36382: SyncBatchNorm's gradient lacks what came over the statistics",
    "activation-gradient gradient",
    "tokens* positions* normalizer*",
)
class NormalizesWithoutABackward(Buffers):
    normalizer = _WithoutBackward


class _RemembersItsOwn(SynchronizedNormalizer):
    def remember(self, mean: torch.Tensor) -> None:
        super().remember(mean * (1 + 0.01 * torch.distributed.get_rank()))


@ROGUES.add(
    "pytorch#22192: running statistics that differ between ranks",
    "replicas update initialization forward",
    "normalizer*",
    "replicas-differ",
)
class RemembersItsOwnMean(Buffers):
    normalizer = _RemembersItsOwn


@ROGUES.add(
    "torchtitan#766 and others: each rank clips by its own norm",
    "norm gradient",
    pattern="not-reduced replicas-differ",
)
class ClipsBeforeItSyncs(DdpClipped, DdpAccumulating):
    def accumulate(self, model: Any, batch: Batch) -> torch.Tensor:
        with model.no_sync():
            return super().accumulate(model, batch)

    def backward_context(self, model: Any, is_last: bool) -> AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def shrink(self, model: Any, clip: float) -> torch.Tensor:
        norm = super().shrink(model, clip)
        for parameter in model.parameters():
            parameter.grad.copy_(summed(parameter.grad, self.replicas_group) / self.size)
        return norm


@ROGUES.add("common mistake: gradients are not cleared between steps", "gradient", pattern="not-cleared")
class NeverClears(DdpAccumulating):
    def train(self, model: Any, optimizer: torch.optim.Optimizer, batch: Batch) -> Stepped:
        optimizer.zero_grad = lambda set_to_none=True: None  # type: ignore[method-assign]
        return super().train(model, optimizer, batch)


@ROGUES.add(
    "common mistake: the learning rate is scaled by the ranks in the parallel run alone",
    "update",
    pattern="sum-for-mean",
)
class ScalesTheLearningRate(DdpAccumulating):
    def train(self, model: Any, optimizer: torch.optim.Optimizer, batch: Batch) -> Stepped:
        optimizer.param_groups[0]["lr"] = 1e-2 * self.size
        return super().train(model, optimizer, batch)


@ROGUES.add("common mistake: a clip for each microbatch, and none for the step", "gradient norm update loss")
class ClipsNothing(DdpClipped, DdpAccumulating):
    def shrink(self, model: Any, clip: float) -> torch.Tensor:
        return nn.utils.clip_grad_norm_(model.parameters(), float("inf"))
