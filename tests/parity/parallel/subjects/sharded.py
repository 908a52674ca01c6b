"""FSDP2: ``fully_shard`` of each block and of the model."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from tests.parity.parallel.subject import Parallel, Summed
from tests.parity.parallel.transformer import Sizes


class Fsdp(Parallel):
    """Parameters, gradients and optimizer state in shards."""

    def __init__(self) -> None:
        super().__init__()
        self.mesh = self.make_mesh()

    def make_mesh(self) -> DeviceMesh:
        return init_device_mesh("cpu", (self.size,))

    def policy(self) -> MixedPrecisionPolicy:
        return MixedPrecisionPolicy()

    def parallelize(self, model: Any) -> Any:
        for block in model.blocks.values():
            self.shard(block)
        self.shard(model)
        return model

    def shard(self, module: Any) -> None:
        fully_shard(module, mesh=self.mesh, mp_policy=self.policy())

    def set_factor(self, module: Any, factor: float) -> None:
        """Set what gradients are divided by. FSDP2 would have the collective do it, which gloo cannot."""
        module.set_gradient_divide_factor(factor)
        module.set_force_sum_reduction_for_comms(True)


class FsdpDivided(Summed, Fsdp):
    """Losses that are this rank's part of the mean, not W times it: gradients are added up."""

    def parallelize(self, model: Any) -> Any:
        super().parallelize(model)
        self.divide(model)
        return model

    def divide(self, model: Any) -> None:
        for module in model.modules():
            if isinstance(module, FSDPModule):
                self.set_factor(module, 1.0)


class FsdpClipped(Fsdp):
    """A clip that bites, by the norm over all shards."""

    clip = 0.05


class FsdpMixed(Fsdp):
    """A model in bfloat16 whose gradients are reduced in float32."""

    dtypes = ("bfloat16",)

    def policy(self) -> MixedPrecisionPolicy:
        return MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


class FsdpRecomputed(Fsdp):
    """Blocks that are gathered and computed again in the backward."""

    transformer = Sizes(recomputed=True)


class FsdpTied(Fsdp):
    """A model whose head is its embedding: both are in the root's shards."""

    transformer = Sizes(tied=True)


class Hsdp(Fsdp):
    """Shards in two groups, each a replica of the other."""

    sizes = (4,)

    def make_mesh(self) -> DeviceMesh:
        return init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("replicate", "shard"))

    def made_groups(self) -> list[Any]:
        return self.mesh.get_all_groups()
