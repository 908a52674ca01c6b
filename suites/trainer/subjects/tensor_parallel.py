"""torch's tensor parallel: the linear layers of a model are cut in turn by columns and by rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from everyrank.suites.engine.subject import Subject
from everyrank.suites.trainer.arena import TRUSTS_INIT
from everyrank.suites.trainer.subjects.common import Adapter
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

_FULL = StateDictOptions(full_state_dict=True)


class TensorParallel(Adapter):
    """Every rank trains on all rows; a pair of linear layers is cut by columns, then by rows."""

    part = (0, 1)

    def wrap(self, model: nn.Module) -> Any:
        mesh = init_device_mesh(next(model.parameters()).device.type, (dist.get_world_size(),))
        layers = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
        pairs = layers[: len(layers) // 2 * 2]  # the last of an odd number stays whole
        plan: dict[str, Any] = {
            name: RowwiseParallel() if number % 2 else ColwiseParallel() for number, name in enumerate(pairs)
        }
        return parallelize_module(model, mesh, plan)

    def mean(self, loss: torch.Tensor) -> torch.Tensor:
        return loss  # every rank has the whole batch

    def parameters(self) -> dict[str, torch.Tensor]:
        full: dict[str, torch.Tensor] = {}
        for name, value in self.named().items():
            full[name] = value.full_tensor().detach() if isinstance(value, DTensor) else value.detach()
        return full

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


TENSOR_PARALLEL = Subject(
    "torch.tensor.parallel",
    contract="trainer",
    build=TensorParallel,
    declares=frozenset({TRUSTS_INIT}),
    sizes=(3,),
    known="tensor_parallel.toml",
)
