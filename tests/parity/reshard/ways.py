"""Ways to save and to load a training, each decision a method, and the layouts that it is trained on."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import StepLR


class Net(nn.Module):
    """A net of which five rows are cut unevenly on each number of ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.last = nn.Linear(6, 12), nn.Linear(12, 6), nn.Linear(6, 5)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(rows + self.down(torch.relu(self.up(rows))))
        return found


def batch(step: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return {"rows": torch.randn(24, 6, generator=generator), "labels": torch.arange(24) % 5}


def loss(model: Any, batch: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch["rows"]), batch["labels"])


def adamw(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-2, foreach=False)


def scheduled(parameters: Iterable[nn.Parameter]) -> list[Any]:
    optimizer = adamw(parameters)
    return [optimizer, StepLR(optimizer, step_size=1, gamma=0.5)]


def sharded(model: nn.Module) -> Any:
    return fully_shard(model)


def replicated(model: nn.Module) -> nn.Module:
    return DistributedDataParallel(model)


def tensor_parallel(model: nn.Module) -> nn.Module:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


class Stages(nn.Module):
    """One of two stages, under the plain model's names."""

    def __init__(self, model: Net) -> None:
        super().__init__()
        self.is_first = dist.get_rank() == 0
        for name, module in model.named_children():
            if (name == "last") != self.is_first:
                setattr(self, name, module)
        stage = PipelineStage(self, dist.get_rank(), 2, torch.device("cpu"))
        self.schedule = [ScheduleGPipe(stage, 4, nn.functional.cross_entropy)]

    def forward(self, rows: torch.Tensor) -> Any:
        return rows + self.down(torch.relu(self.up(rows))) if self.is_first else self.last(rows)


def step_of_stages(model: Stages, optimizer: Any, batch: Any) -> None:
    if model.is_first:
        model.schedule[0].step(batch["rows"])
    else:
        model.schedule[0].step(target=batch["labels"])
    optimizer.step()
    optimizer.zero_grad()


class Checkpoint:
    """By torch.distributed.checkpoint, under the names of parameters."""

    def save(self, model: Any, optimizer: Any, path: str) -> None:
        dcp.save(self.saved(self.state(model, optimizer)), checkpoint_id=path)

    def load(self, model: Any, optimizer: Any, path: str) -> None:
        state = self.state(model, optimizer)
        dcp.load(state, checkpoint_id=path)
        self.put(model, optimizer, self.loaded(state))

    def state(self, model: Any, optimizer: Any) -> dict[str, Any]:
        weights, kept = get_state_dict(model, self.optimizer(optimizer))
        return {"model": weights, "optimizer": kept}

    def optimizer(self, optimizer: Any) -> torch.optim.Optimizer:
        found: torch.optim.Optimizer = optimizer[0] if isinstance(optimizer, list) else optimizer
        return found

    def saved(self, state: dict[str, Any]) -> dict[str, Any]:
        return state

    def loaded(self, state: dict[str, Any]) -> dict[str, Any]:
        return state

    def put(self, model: Any, optimizer: Any, state: dict[str, Any]) -> None:
        set_state_dict(
            model, self.optimizer(optimizer), model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )


class WithScheduler(Checkpoint):
    """With the scheduler's state, which is the same on each rank."""

    def save(self, model: Any, optimizer: Any, path: str) -> None:
        super().save(model, optimizer, path)
        if dist.get_rank() == 0:
            torch.save(optimizer[1].state_dict(), os.path.join(path, "scheduler.pt"))

    def load(self, model: Any, optimizer: Any, path: str) -> None:
        super().load(model, optimizer, path)
        self.put_scheduler(optimizer[1], torch.load(os.path.join(path, "scheduler.pt")))

    def put_scheduler(self, scheduler: Any, state: dict[str, Any]) -> None:
        scheduler.load_state_dict(state)


class Later(Checkpoint):
    """The same, written by a thread while the training would go on."""

    def save(self, model: Any, optimizer: Any, path: str) -> None:
        dcp.async_save(self.state(model, optimizer), checkpoint_id=path).result()


class Whole(Checkpoint):
    """A file of whole tensors, which the first rank writes and each rank reads."""

    def save(self, model: Any, optimizer: Any, path: str) -> None:
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        weights, kept = get_state_dict(model, self.optimizer(optimizer), options=options)
        if dist.get_rank() == 0:
            torch.save(self.saved({"model": weights, "optimizer": kept}), os.path.join(path, "whole.pt"))

    def load(self, model: Any, optimizer: Any, path: str) -> None:
        state = self.loaded(torch.load(os.path.join(path, "whole.pt")))
        options = StateDictOptions(full_state_dict=True)
        set_state_dict(
            model, self.optimizer(optimizer), model_state_dict=state["model"], optim_state_dict=state["optimizer"],
            options=options,
        )  # fmt: skip
