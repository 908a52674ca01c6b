"""Rogues of FSDP2."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from tests.parity.parallel.rogue import Rogues
from tests.parity.parallel.subject import ByHand
from tests.parity.parallel.subjects.sharded import Fsdp, FsdpClipped, FsdpDivided, FsdpMixed, FsdpTied, Hsdp

ROGUES = Rogues()


@ROGUES.add("torchtitan#2972: one of two paths divides, the other does not", "gradient", pattern="sum-for-mean")
class FactorIsForgotten(FsdpDivided):
    def divide(self, model: Any) -> None:
        pass


@ROGUES.add("common mistake: the factor is set on the root alone", "gradient", "blocks.*", "sum-for-mean")
class FactorIsSetOnTheRoot(FsdpDivided):
    def divide(self, model: Any) -> None:
        self.set_factor(model, 1.0)


@ROGUES.add("pytorch#155903: a factor that is applied once for each dimension", "gradient", pattern="sum-for-mean")
class FactorIsTheWorld(FsdpDivided):
    def divide(self, model: Any) -> None:
        for block in model.blocks.values():
            self.set_factor(block, float(self.size) ** 2)
        self.set_factor(model, 1.0)


@ROGUES.add("verl#7493, HSDP of shards alone: replicas do not reduce", "gradient", "*", "not-reduced", size=4)
class ReplicasDoNotReduce(Hsdp):
    def shard(self, module: Any) -> None:
        mesh: DeviceMesh = self.mesh["shard"]
        fully_shard(module, mesh=mesh, mp_policy=self.policy())


@ROGUES.add(
    "common mistake: blocks are reduced over all ranks, the root within its group",
    "gradient",
    "*",
    "not-reduced",
    size=4,
)
class RootDoesNotReduce(Hsdp):
    def shard(self, module: Any) -> None:
        mesh: DeviceMesh = self.mesh["shard"] if hasattr(module, "blocks") else self.mesh
        fully_shard(module, mesh=mesh, mp_policy=self.policy())


@ROGUES.add(
    "pytorch#170862, torchtitan#766: each rank clips by the norm of its shards", "norm", pattern="not-reduced"
)
class ClipsByLocalNorm(ByHand, FsdpClipped):
    def shrink(self, model: Any, clip: float) -> torch.Tensor:
        shards = [parameter.grad.to_local() for parameter in model.parameters()]
        norm = torch.stack([shard.square().sum() for shard in shards]).sum().sqrt()
        for shard in shards:
            shard.mul_((clip / (norm + 1e-6)).clamp(max=1.0))
        return norm


@ROGUES.add("VeOmni#862: squares are added up over replicas, too", "norm", size=4)
class CountsReplicasInTheNorm(ByHand, Hsdp):
    clip = 0.05

    def shrink(self, model: Any, clip: float) -> torch.Tensor:
        norm = super().shrink(model, clip)
        return norm * 2**0.5


@ROGUES.add("Megatron-LM#372: gradients are reduced in bfloat16", "gradient", pattern="rounded other-dtype-only")
class ReducesShardsInBfloat16(Fsdp):
    def policy(self) -> MixedPrecisionPolicy:
        return MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)


@ROGUES.add(
    "common mistake: a divide factor for a small dtype, left on",
    "gradient",
    "*",
    "sum-for-mean other-dtype-only",
    dtype="bfloat16",
)
class ScalesInBfloat16(FsdpMixed):
    def parallelize(self, model: Any) -> Any:
        super().parallelize(model)
        if next(model.parameters()).dtype == torch.bfloat16:
            self.set_factor(model, 1.0)
        return model


@ROGUES.add(
    "common mistake: a tied head in a group of its own",
    "gradient initialization",
    "tokens.weight head.weight",
    pattern="not-reduced",
)
class ShardsTheTiedHeadAlone(FsdpTied):
    def parallelize(self, model: Any) -> Any:
        model.head.weight = nn.Parameter(model.head.weight.detach().clone())
        fully_shard(model.head, mesh=self.mesh)
        return super().parallelize(model)


@ROGUES.add(
    "common mistake: gradients of earlier microbatches are not reduced with the last", "gradient", "*", "not-reduced"
)
class LosesTheFirstMicrobatch(ByHand, Fsdp):
    def scaled(self, loss: torch.Tensor, parts: int) -> torch.Tensor:
        self.module.zero_grad()
        return super().scaled(loss, parts)

    def parallelize(self, model: Any) -> Any:
        self.module = super().parallelize(model)
        return self.module


@ROGUES.add(
    "torch 2.13, fully_shard on a group of one rank: a factor divides before and after a reduction that is left out",
    "gradient",
    "*",
    "other-dtype-only",
)
class FactorOnAGroupOfOne(ByHand, Fsdp):
    def make_mesh(self) -> DeviceMesh:
        return init_device_mesh("cpu", (self.size, 1), mesh_dim_names=("replicate", "shard"))

    def made_groups(self) -> list[Any]:
        return self.mesh.get_all_groups()

    def parallelize(self, model: Any) -> Any:
        super().parallelize(model)
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(float(self.size))
        return model

    def shard(self, module: Any) -> None:
        fully_shard(module, mesh=self.mesh["shard"])

    def finish(self, model: Any) -> None:
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad.to_local())
