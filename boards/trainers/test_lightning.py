"""lightning-fabric: ``setup`` wraps a model and its optimizer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
import torch.distributed as dist
from everyrank.suites import Subject, conformance
from everyrank.suites.trainer.subjects.common import Adapter
from torch import nn

pytest.importorskip("lightning_fabric", reason="pip install lightning-fabric")
from lightning_fabric import Fabric
from lightning_fabric.plugins.environments import LightningEnvironment
from lightning_fabric.strategies import DDPStrategy, ModelParallelStrategy
from torch.distributed.fsdp import fully_shard


class Ranks(LightningEnvironment):
    """The processes are there already."""

    creates_processes_externally = True

    def world_size(self) -> int:
        return dist.get_world_size()

    def global_rank(self) -> int:
        return dist.get_rank()

    def local_rank(self) -> int:
        return dist.get_rank()

    def set_world_size(self, size: int) -> None: ...

    def set_global_rank(self, rank: int) -> None: ...


class WithFabric(Adapter):
    """A model, then its optimizer: FSDP2 gives the model other parameters."""

    def wrap(self, model: nn.Module) -> Any:
        self.fabric = Fabric(
            accelerator="cpu", devices=dist.get_world_size(), strategy=self.strategy(), plugins=Ranks()
        )
        self.fabric.launch()
        return self.fabric.setup_module(model)

    def strategy(self) -> Any:
        return DDPStrategy(process_group_backend="gloo", find_unused_parameters=True)

    def optimize(self, *args: Any) -> Any:
        return self.fabric.setup_optimizers(super().optimize(*args))

    def step(self, *batches: Any, max_norm: float | None = None) -> Any:
        self.optimizer.zero_grad()
        for number, batch in enumerate(batches, 1):
            with self.fabric.no_backward_sync(self.wrapped, enabled=number < len(batches)):
                self.fabric.backward(batch.loss(self.wrapped))
        if max_norm is not None:
            self.fabric.clip_gradients(self.wrapped, self.optimizer, max_norm=max_norm, error_if_nonfinite=False)
        self.optimizer.step()


class Parallel(WithFabric):
    """A model that a function of the user's shards over the mesh of the strategy."""

    def strategy(self) -> Any:
        return ModelParallelStrategy(
            lambda model, mesh: fully_shard(model, mesh=mesh["data_parallel"]),
            data_parallel_size=dist.get_world_size(),
            tensor_parallel_size=1,
            save_distributed_checkpoint=False,
            process_group_backend="gloo",
        )

    def parameters(self) -> dict[str, torch.Tensor]:
        return {name: value.full_tensor() for name, value in super().parameters().items()}

    def state_dict(self) -> dict[str, Any]:
        with self.file() as path:
            self.fabric.save(path, {"model": self.wrapped, "optimizer": self.optimizer})
            self.fabric.barrier()
            return torch.load(path)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        with self.file() as path:
            if dist.get_rank() == 0:
                torch.save(dict(state), path)
            self.fabric.barrier()
            self.fabric.load(path, {"model": self.wrapped, "optimizer": self.optimizer})

    @contextmanager
    def file(self) -> Iterator[Path]:
        """A file that all ranks see."""
        with TemporaryDirectory() as folder:
            yield Path(self.fabric.broadcast(folder)) / "state"
            self.fabric.barrier()


DDP = Subject(
    "lightning.ddp",
    contract="trainer",
    build=WithFabric,
    lacks=["closures", "owns"],
    known="torch:ddp",
    package="lightning-fabric",
)


PARALLEL = Subject(
    "lightning.model_parallel",
    contract="trainer",
    build=Parallel,
    declares=frozenset({"same-graph", "trusts-init", "trusts-order"}),
    lacks=["closures", "owns"],
    known=["torch:fsdp2", "lightning_model_parallel.toml"],
    package="lightning-fabric",
)


@conformance(DDP, PARALLEL)
def test_lightning(case: Any) -> None:
    case.run()
