"""The ways to make a published model parallel. Each decision is a method, so that a fault is one method changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from everyrank.parity import Parted, Report, parity
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from tests.parity.published.models import Published, batch, loss


class Way:
    """One way to make a model parallel, on this rank."""

    #: As `parity` takes it: every rank has the whole batch, or its own rows.
    split: ClassVar[str | None] = "none"
    microbatches: ClassVar[int] = 2

    def __init__(self, published: Published, folder: Path) -> None:
        self.published = published
        self.size = dist.get_world_size()
        self.folder = _of_first_rank(str(folder / "model"))

    def parallelize(self, model: Any) -> Any:
        raise NotImplementedError

    def report(self) -> Report:
        """Return what parity says."""
        try:
            return parity(
                model=self.published.build,
                parallelize=self.parallelize,
                batch=batch,
                loss=loss,
                optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
                split=self.split,
                microbatches=self.microbatches,
            )
        except Parted as parted:
            return parted.report


def _of_first_rank(value: str) -> str:
    held = [value]
    dist.broadcast_object_list(held, 0)
    return held[0]


class Fsdp(Way):
    """FSDP2: each layer, and the rest."""

    split = None

    def parallelize(self, model: Any) -> Any:
        for layer in self.published.layers(model):
            fully_shard(layer)
        return fully_shard(model)


class Tensor(Way):
    """Tensor parallelism of torch, by rules for each layer."""

    def parallelize(self, model: Any) -> Any:
        mesh = init_device_mesh("cpu", (self.size,), mesh_dim_names=("tp",))
        for layer in self.published.layers(model):
            for name in self.published.heads:
                module: Any = layer.get_submodule(name)
                module.nheads, module.kvheads = module.nheads // self.size, module.kvheads // self.size
            parallelize_module(layer, mesh, self.rules())
            for name in self.published.head_norms:
                self.reduce(layer.get_submodule(name), mesh.get_group())
        return model

    def rules(self) -> dict[str, ParallelStyle]:
        columns: dict[str, ParallelStyle] = {name: ColwiseParallel() for name in self.published.columns}
        return {**columns, **{name: RowwiseParallel() for name in self.published.rows}}

    def reduce(self, norm: nn.Module, group: Any) -> None:
        """Sum the gradients over ranks: of each backward, and not what has been accumulated."""

        def summed(gradient: torch.Tensor) -> torch.Tensor:
            total = gradient.clone()
            dist.all_reduce(total, group=group)
            return total

        for parameter in norm.parameters():
            parameter.register_hook(summed)


class Library(Way):
    """The tensor parallelism of transformers: each rank loads its parts from a folder."""

    def parallelize(self, model: Any) -> Any:
        import transformers
        from transformers.distributed import DistributedConfig

        if dist.get_rank() == 0:
            model.save_pretrained(self.folder)
        dist.barrier()
        made = transformers.AutoModelForCausalLM.from_pretrained(
            self.folder,
            distributed_config=DistributedConfig(**self.distributed()),
            dtype=model.dtype,
            attn_implementation="eager",
            experts_implementation="eager",
        )
        dist.barrier()
        return made.train()

    def distributed(self) -> dict[str, Any]:
        return {"tp_plan": self.plan() or "auto", "tp_size": self.size}

    def plan(self) -> dict[str, str]:
        """Return rules that stand in place of the model's own."""
        return {}


class LibraryAtOnce(Library):
    """It with one microbatch, as some of its gradients are wrong with more: see test_findings."""

    microbatches = 1


class LibraryExperts(Library):
    """FSDP2 and experts over ranks, both by transformers: each rank has its rows and a part of the experts."""

    split = "rows"

    def distributed(self) -> dict[str, Any]:
        return {"fsdp_size": self.size, "ep_size": self.size}


Made = Callable[[Published, Path], Way]
