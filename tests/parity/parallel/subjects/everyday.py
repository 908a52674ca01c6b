"""What users' own code does and nothing forbids: options of wrappers, clips by hand, optimizers that reduce."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from tests.parity.parallel.collectives import summed
from tests.parity.parallel.models import TwoHeads
from tests.parity.parallel.parts import IGNORED
from tests.parity.parallel.subject import Batch, ByHand, Stepped
from tests.parity.parallel.subjects.context import Context
from tests.parity.parallel.subjects.megatron import Megatron
from tests.parity.parallel.subjects.pipeline import Pipeline
from tests.parity.parallel.subjects.replicas import Averaged, Ddp
from tests.parity.parallel.subjects.sharded import Fsdp
from tests.parity.parallel.subjects.variants import Muon
from tests.parity.parallel.transformer import Sizes

# -- options of torch's wrappers -------------------------------------------------------------------------------------


class DdpStaticGraph(Ddp):
    sizes = (2,)

    def parallelize(self, model: nn.Module) -> Any:
        return DistributedDataParallel(model, static_graph=True)


class DdpBucketViews(Ddp):
    sizes = (2,)

    def parallelize(self, model: nn.Module) -> Any:
        return DistributedDataParallel(model, gradient_as_bucket_view=True, bucket_cap_mb=0.01)


class DdpHooked(Ddp):
    """Gradients are reduced by a hook of torch's."""

    sizes = (2,)

    def parallelize(self, model: nn.Module) -> Any:
        made = DistributedDataParallel(model)
        made.register_comm_hook(None, default_hooks.allreduce_hook)
        return made


class DdpFrozen(Ddp):
    """The embeddings are not trained."""

    sizes = (2,)

    def model(self) -> nn.Module:
        model = super().model()
        model.get_submodule("tokens").requires_grad_(False)
        return model


class DdpUnused(Ddp):
    """A second head is in no loss."""

    sizes = (2,)

    def model(self) -> nn.Module:
        return TwoHeads(self.transformer)

    def parallelize(self, model: nn.Module) -> Any:
        return DistributedDataParallel(model, find_unused_parameters=True)

    def loss(self, model: Any, batch: Batch) -> torch.Tensor:
        return self.share(model(batch["tokens"], batch["labels"], batch["row"])[0], batch)


class DdpSparse(Ddp):
    """An embedding has sparse gradients."""

    sizes = (2,)

    def model(self) -> nn.Module:
        model = super().model()
        tokens = model.get_submodule("tokens")
        assert isinstance(tokens, nn.Embedding)
        tokens.sparse = True
        return model

    def optimizer(self, params: Iterable[Any]) -> torch.optim.Optimizer:
        return torch.optim.SGD(params, lr=0.1)


class FsdpKept(Fsdp):
    """Gathered parameters stay from forward to backward."""

    sizes = (2,)

    def shard(self, module: Any) -> None:
        fully_shard(module, mesh=self.mesh, reshard_after_forward=False)


class FsdpRoot(Fsdp):
    """All parameters are in the root's shards."""

    sizes = (2,)

    def parallelize(self, model: Any) -> Any:
        self.shard(model)
        return model


# -- a user's own code -----------------------------------------------------------------------------------------------


class Wrapped(nn.Module):
    """A wrapper of a user's own, which averages gradients by hooks."""

    def __init__(self, model: nn.Module, subject: Averaged) -> None:
        super().__init__()
        self.inner = model
        for parameter in model.parameters():
            parameter.register_hook(subject.mean)

    def forward(self, *arguments: Any) -> Any:
        return self.inner(*arguments)


class AveragedByWrapper(Averaged):
    sizes = (2,)

    def parallelize(self, model: nn.Module) -> Any:
        return Wrapped(model, self)

    def finish(self, model: nn.Module) -> None:
        """The wrapper has done it."""

    def plain_name(self, name: str) -> str:
        return name.removeprefix("inner.")


class AveragedClipped(Averaged):
    """A clip by hand that adds nothing to the norm."""

    sizes = (2,)
    clip = 0.05
    epsilon = 0.0

    def shrink(self, model: Any, clip: float) -> torch.Tensor:
        gradients = [parameter.grad for parameter in model.parameters()]
        norm = torch.stack([gradient.square().sum() for gradient in gradients]).sum().sqrt()
        for gradient in gradients:
            gradient.mul_(clip / norm)
        return norm


class Reducing(torch.optim.AdamW):
    """As Horovod's: gradients are the mean over ranks once a step has begun."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad.copy_(summed(parameter.grad, None) / dist.get_world_size())
        return super().step(closure)


class AveragedByTheOptimizer(Averaged):
    """The optimizer reduces when it steps."""

    sizes = (2,)
    reduces_in_step = True

    def parallelize(self, model: nn.Module) -> Any:
        return model, Reducing(model.parameters(), lr=1e-2, weight_decay=0.1)

    def finish(self, model: nn.Module) -> None:
        """The optimizer does it."""


class AveragedByTokens(Averaged, ByHand):
    """A rank's loss is a sum over its tokens. Gradients are added up, and divided by the tokens of all ranks."""

    sizes = (2,)

    def accumulate(self, model: Any, batch: Batch) -> torch.Tensor:
        mine = self.mine(batch)
        self.tokens = summed((mine["labels"] != IGNORED).sum(), None)
        total = torch.zeros(())
        for part in self.cut(mine):
            loss: torch.Tensor = model(part["tokens"], part["labels"], part["row"]).sum()
            loss.backward()
            total = total + loss.detach()
        return total / self.tokens * self.size

    def mean(self, bucket: torch.Tensor) -> torch.Tensor:
        return summed(bucket, None) / self.tokens


class DdpWeighted(Ddp, ByHand):
    """A rank's loss is the mean over its own tokens, which counts as much as it has of them all."""

    sizes = (2,)

    def accumulate(self, model: Any, batch: Batch) -> torch.Tensor:
        mine = self.mine(batch)
        tokens = (mine["labels"] != IGNORED).sum()
        loss: torch.Tensor = model(mine["tokens"], mine["labels"], mine["row"]).sum() / tokens
        loss = loss * tokens * self.size / summed(tokens, None)
        loss.backward()
        return loss.detach()


class AveragedUnevenly(Averaged, ByHand):
    """The first rank has twice as many rows as the second."""

    sizes = (2,)
    microbatches = 1

    def mine(self, batch: Batch) -> Batch:
        part = slice(16) if self.rank == 0 else slice(16, None)
        return {name: each[part] for name, each in batch.items()}

    def share(self, losses: torch.Tensor, batch: Batch) -> torch.Tensor:
        return losses.sum() / batch["total"][0]

    def mean(self, bucket: torch.Tensor) -> torch.Tensor:
        return summed(bucket, None)

    def report(self, loss: torch.Tensor) -> torch.Tensor:
        return summed(loss, None)


class Nothing(nn.Module):
    """What a rank has that holds no parameter."""


class OneTrains(ByHand):
    """The first rank trains, and the others hold nothing."""

    sizes = (2,)
    split = "none"

    def parallelize(self, model: nn.Module) -> Any:
        return model if self.rank == 0 else Nothing()

    def optimizer(self, params: Iterable[Any]) -> torch.optim.Optimizer:
        return super().optimizer([*params] or [nn.Parameter(torch.empty(0))])

    def accumulate(self, model: Any, batch: Batch) -> torch.Tensor:
        return super().accumulate(model, batch) if self.rank == 0 else torch.zeros(())

    def report(self, loss: torch.Tensor) -> torch.Tensor:
        everywhere = loss.double()
        dist.broadcast(everywhere, 0)
        return everywhere


class DdpByClosure(Ddp, ByHand):
    """The optimizer's step runs the backward."""

    sizes = (2,)
    reduces_in_step = True

    def train(self, model: Any, optimizer: torch.optim.Optimizer, batch: Batch) -> Stepped:
        def closure() -> float:
            optimizer.zero_grad()
            return float(self.accumulate(model, batch))

        loss: Any = optimizer.step(closure)
        return self.report(torch.tensor(loss, dtype=torch.float64))


class DdpScaled(Ddp, ByHand):
    """A scaler of the loss, as for fp16."""

    sizes = (2,)
    dtypes = ("float64", "float32")

    def train(self, model: Any, optimizer: torch.optim.Optimizer, batch: Batch) -> Stepped:
        scaler = torch.amp.GradScaler("cpu")
        total = torch.zeros(())
        for part in self.cut(self.mine(batch)):
            loss = self.scaled(self.loss(model, part), self.microbatches)
            scaler.scale(loss).backward()
            total = total + loss.detach()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return self.report(total)


class DdpScheduled(Ddp, ByHand):
    """A scheduler that leaves the rate as it is."""

    sizes = (2,)

    def train(self, model: Any, optimizer: torch.optim.Optimizer, batch: Batch) -> Stepped:
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1.0)
        stepped = super().train(model, optimizer, batch)
        scheduler.step()
        return stepped


class AveragedMuon(Averaged):
    """An optimizer that looks at whole matrices, which every rank has."""

    sizes = (2,)

    def optimizer(self, params: Iterable[Any]) -> torch.optim.Optimizer:
        return Muon(params)


# -- parts of a model ------------------------------------------------------------------------------------------------


class PassedOn(nn.Identity):
    """What stands for the module of another stage."""

    def forward(self, x: torch.Tensor, *_: Any) -> torch.Tensor:
        return x


class PipelineOfStandIns(Pipeline):
    """A stage has a module for each of the plain model's: those of other stages give on what they get."""

    sizes = (2,)

    def own_blocks(self, blocks: nn.ModuleDict) -> nn.ModuleDict:
        return nn.ModuleDict(
            {name: block if self.is_mine(int(name)) else PassedOn() for name, block in blocks.items()}
        )


class PipelineOfOne(Pipeline):
    """A pipeline with one microbatch."""

    sizes = (2,)
    microbatches = 1


class ContextStriped(Context):
    """Each rank has every other token."""

    sizes = (2,)

    def chosen(self, length: int) -> torch.Tensor:
        return torch.arange(self.rank, length, self.size)


class MegatronRecomputed(Megatron):
    """Blocks that are computed again in the backward, with their collectives."""

    sizes = (2,)
    transformer = Sizes(recomputed=True)
