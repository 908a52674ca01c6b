"""torch's trainers that cut the parameters themselves: FSDP2, HSDP and FSDP1."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from everyrank.suites.engine.subject import Subject
from everyrank.suites.trainer.arena import SAME_GRAPH, TRUSTS_INIT
from everyrank.suites.trainer.subjects.common import Adapter
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

_FULL = StateDictOptions(full_state_dict=True)


class Fsdp2(Adapter):
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

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer, options=_FULL)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
            options=_FULL,
        )


class Hsdp(Fsdp2):
    """``fully_shard`` over a mesh of two dimensions: replicas of pairs that cut the parameters."""

    def mesh(self, device: str) -> DeviceMesh:
        return init_device_mesh(device, (dist.get_world_size() // 2, 2), mesh_dim_names=("replicate", "shard"))


_DECLARES = frozenset({TRUSTS_INIT, SAME_GRAPH})

FSDP2 = Subject("torch.fully_shard", contract="trainer", build=Fsdp2, declares=_DECLARES, known="fsdp2.toml")
HSDP = Subject(
    "torch.fully_shard(2-D)", contract="trainer", build=Hsdp, sizes=(4,), declares=_DECLARES, known="hsdp.toml"
)
