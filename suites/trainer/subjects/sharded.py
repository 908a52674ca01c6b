"""torch's trainers that hold the parameters themselves: FSDP2, also as HSDP and as replicate, and FSDP1."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from everyrank.suites.engine.subject import Subject
from everyrank.suites.trainer.arena import SAME_COUNT, SAME_GRAPH, TRUSTS_INIT, TRUSTS_ORDER
from everyrank.suites.trainer.subjects.common import NO_LBFGS, FullState
from everyrank.suites.trainer.subjects.meshes import mesh_of_pairs
from everyrank.suites.trainer.subjects.ownership import Ownership, owned_parameters
from torch import nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard


class Fsdp2(FullState):
    """``fully_shard`` on the whole model; the state by the state_dict API of torch.distributed.checkpoint."""

    def wrap(self, model: nn.Module) -> Any:
        return fully_shard(model, mesh=self.mesh(next(model.parameters()).device.type))

    def mesh(self, device: str) -> DeviceMesh:
        return init_device_mesh(device, (dist.get_world_size(),))

    def unsynced(self) -> AbstractContextManager[Any]:
        return self._accumulating()

    @contextlib.contextmanager
    def _accumulating(self) -> Iterator[None]:
        self.wrapped.set_requires_gradient_sync(False)
        yield
        self.wrapped.set_requires_gradient_sync(True)

    def parameters(self) -> dict[str, torch.Tensor]:
        return {name: value.detach().full_tensor() for name, value in self.named().items()}

    def owns(self) -> dict[str, Ownership]:
        return owned_parameters(self.named())


class Hsdp(Fsdp2):
    """``fully_shard`` over a mesh of two dimensions: replicas of pairs that cut the parameters."""

    def mesh(self, device: str) -> DeviceMesh:
        return mesh_of_pairs(device, ("replicate", "shard"))


class Replicated(Fsdp2):
    """``replicate`` as torch builds it on the engine of ``fully_shard``."""

    def wrap(self, model: nn.Module) -> Any:
        return replicate(model, mesh=self.mesh(next(model.parameters()).device.type))


class Fsdp1(FullState):
    """FullyShardedDataParallel around the whole model, whose parameters keep their names."""

    def wrap(self, model: nn.Module) -> Any:
        return FullyShardedDataParallel(model, use_orig_params=True, device_id=next(model.parameters()).device)

    def optimize(self, optimizer_class: Callable[..., Any], parameters: list[Any], args: Any, kwargs: Any) -> Any:
        if optimizer_class is torch.optim.LBFGS:
            raise NotImplementedError(
                NO_LBFGS.reason
            )  # torch accepts it, and hangs, as under ZeroRedundancyOptimizer
        return super().optimize(optimizer_class, parameters, args, kwargs)

    def unsynced(self) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = self.wrapped.no_sync()
        return context

    def clip(self, max_norm: float) -> None:
        self.wrapped.clip_grad_norm_(max_norm)

    def parameters(self) -> dict[str, torch.Tensor]:
        with FullyShardedDataParallel.summon_full_params(self.wrapped, writeback=False):
            return {name: value.detach().clone() for name, value in self.model.named_parameters()}


_DECLARES = frozenset({TRUSTS_INIT, TRUSTS_ORDER, SAME_GRAPH})

FSDP2 = Subject("torch.fully_shard", contract="trainer", build=Fsdp2, declares=_DECLARES, known="fsdp2.toml", turn=1)
HSDP = Subject(
    "torch.fully_shard(2-D)",
    contract="trainer",
    build=Hsdp,
    sizes=(4, 256, 1024),
    declares=_DECLARES,
    known="hsdp.toml",
    variant_of=FSDP2,
    touches=("mean", "equal", "clip", "init.sync", "large-world"),
)
REPLICATE = Subject(
    "torch.replicate_with_fsdp",
    contract="trainer",
    build=Replicated,
    sizes=(2, 3),
    declares=_DECLARES,
    known="replicate_with_fsdp.toml",
    variant_of=FSDP2,  # on its engine, with a mesh that cuts nothing
    touches=("mean", "equal", "clip", "init.sync", "parity.models", "state.round-trip"),
)
FSDP1 = Subject(
    "torch.FullyShardedDataParallel",
    contract="trainer",
    build=Fsdp1,
    sizes=(2, 3),
    declares=frozenset({TRUSTS_INIT, TRUSTS_ORDER, SAME_COUNT}),
    lacks={"parity.closure[*]": NO_LBFGS, "errors.arguments[LBFGS-*]": NO_LBFGS},
    known="fsdp1.toml",
    turn=2,
)
