"""Replicas of the whole model: DDP, averaging by hand, ZeRO-1."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from everyrank.fixtures.quiet import distributed_optim
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.parity.parallel.collectives import summed
from tests.parity.parallel.parts import Normalizer
from tests.parity.parallel.subject import ByHand, Parallel, Summed
from tests.parity.parallel.transformer import Sizes


class Ddp(Parallel):
    """DDP, which reduces after every microbatch."""

    def parallelize(self, model: nn.Module) -> Any:
        return DistributedDataParallel(model)


class DdpAccumulating(Ddp, ByHand):
    """DDP, which reduces after the last microbatch alone."""

    def backward_context(self, model: Any, is_last: bool) -> AbstractContextManager[Any]:
        return contextlib.nullcontext() if is_last else model.no_sync()


class DdpClipped(Ddp):
    """DDP with a clip that bites."""

    clip = 0.05


class DdpDropout(Ddp):
    """DDP with active dropout, whose masks depend on row and position alone."""

    transformer = Sizes(dropout=0.25)


class DdpTied(Ddp):
    """DDP of a model whose head is its embedding."""

    transformer = Sizes(tied=True)


class DdpRecomputed(Ddp):
    """DDP of a model that computes its blocks again in the backward."""

    transformer = Sizes(recomputed=True)


class DdpTokenless(Ddp):
    """DDP with a last rank none of whose tokens counts."""

    def valid(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.where(rows < self.rows - self.rows // self.size, super().valid(rows), 0)


class Averaged(Parallel):
    """Gradients averaged by hand, in one flat bucket, after the last microbatch."""

    def parallelize(self, model: nn.Module) -> Any:
        self.start_alike(model)
        return model

    def start_alike(self, model: nn.Module) -> None:
        for parameter in model.parameters():
            dist.broadcast(parameter.detach(), 0)

    def finish(self, model: nn.Module) -> None:
        gradients = [parameter.grad for parameter in self.reduced(model) if parameter.grad is not None]
        bucket = torch.cat([gradient.flatten() for gradient in gradients])
        means = self.mean(bucket).split([gradient.numel() for gradient in gradients])
        for gradient, mean in zip(gradients, means, strict=True):
            self.give(gradient, mean.view_as(gradient))

    def reduced(self, model: nn.Module) -> list[nn.Parameter]:
        return list(model.parameters())

    def mean(self, bucket: torch.Tensor) -> torch.Tensor:
        return summed(bucket, self.replicas_group) / self.size

    def give(self, gradient: torch.Tensor, mean: torch.Tensor) -> None:
        gradient.copy_(mean)


class AveragedByHooks(Parallel):
    """Each microbatch's gradients averaged by hooks, before they are added up."""

    def parallelize(self, model: nn.Module) -> Any:
        for name, parameter in model.named_parameters():
            if self.is_reduced(name):
                self.hook(parameter)
        return model

    def is_reduced(self, name: str) -> bool:
        return True

    def hook(self, parameter: nn.Parameter) -> None:
        parameter.register_hook(self.mean)

    def mean(self, gradient: torch.Tensor) -> torch.Tensor:
        return summed(gradient, self.replicas_group) / self.size


class SummedByHooks(Summed, AveragedByHooks):
    """Each microbatch's gradients added up over ranks by hooks, before they are added up over microbatches."""

    def mean(self, gradient: torch.Tensor) -> torch.Tensor:
        return summed(gradient, self.replicas_group)


class SynchronizedNormalizer(Normalizer):
    """A statistic over all ranks' rows, as SyncBatchNorm's."""

    def mean(self, x: torch.Tensor) -> torch.Tensor:
        return self.over_ranks(super().mean(x))

    def over_ranks(self, mean: torch.Tensor) -> torch.Tensor:
        whole: torch.Tensor = MeanOverRanks.apply(mean)
        return whole


class MeanOverRanks(torch.autograd.Function):
    """The mean over ranks, each of which goes on with it: gradients are added up, and shared."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return summed(x, None) / dist.get_world_size()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return summed(gradients[0], None) / dist.get_world_size()


class Buffers(Averaged):
    """A batch norm over all ranks' rows with a running mean. One microbatch, since it sees no other one."""

    transformer = Sizes(normalized=True)
    microbatches = 1
    normalizer: type[Normalizer] = SynchronizedNormalizer

    def parallelize(self, model: Any) -> Any:
        model.normalizer.__class__ = self.normalizer
        return super().parallelize(model)


class Zero(Ddp):
    """ZeRO-1 by torch's means."""

    def parallelize(self, model: nn.Module) -> Any:
        optimizer = distributed_optim.ZeroRedundancyOptimizer(
            model.parameters(), torch.optim.AdamW, lr=1e-2, weight_decay=0.1
        )
        return super().parallelize(model), optimizer


class ZeroByHand(Averaged):
    """ZeRO-1 by hand: each rank steps the parameters that it owns, and sends them to the others."""

    def parallelize(self, model: nn.Module) -> Any:
        self.start_alike(model)
        return model, Owned(self, list(model.parameters()))

    def owner(self, number: int) -> int:
        return number % self.size

    def inner(self, params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return self.optimizer(params)

    def send(self, parameter: nn.Parameter, owner: int) -> None:
        dist.broadcast(parameter.detach(), owner)


class Owned(torch.optim.Optimizer):
    """The optimizer of one rank's parameters. It has all of them, and steps its own."""

    def __init__(self, subject: ZeroByHand, params: list[nn.Parameter]) -> None:
        super().__init__(params, {})
        self.subject = subject
        self.all = params
        self.inner = subject.inner(
            parameter for number, parameter in enumerate(params) if subject.owner(number) == subject.rank
        )

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.inner.step()
        for number, parameter in enumerate(self.all):
            self.subject.send(parameter, self.subject.owner(number))
