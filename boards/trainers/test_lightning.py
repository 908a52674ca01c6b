"""lightning-fabric: ``setup`` wraps a model and its optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch.distributed as dist
from everyrank.suites import Subject, conformance
from everyrank.suites.trainer.subjects.common import Adapter
from torch import nn

pytest.importorskip("lightning_fabric", reason="pip install lightning-fabric")
from lightning_fabric import Fabric
from lightning_fabric.plugins.environments import LightningEnvironment
from lightning_fabric.strategies import DDPStrategy


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
    def wrap(self, model: nn.Module) -> Any:
        return model

    def optimize(self, optimizer_class: Callable[..., Any], parameters: list[Any], args: Any, kwargs: Any) -> Any:
        strategy = DDPStrategy(process_group_backend="gloo", cluster_environment=Ranks(), find_unused_parameters=True)
        self.fabric = Fabric(accelerator="cpu", devices=dist.get_world_size(), strategy=strategy)
        self.fabric.launch()
        self.wrapped, optimizer = self.fabric.setup(self.model, optimizer_class(parameters, *args, **kwargs))
        return optimizer

    def step(self, *batches: Any, max_norm: float | None = None) -> Any:
        self.optimizer.zero_grad()
        for number, batch in enumerate(batches, 1):
            with self.fabric.no_backward_sync(self.wrapped, enabled=number < len(batches)):
                self.fabric.backward(batch.loss(self.wrapped))
        if max_norm is not None:
            self.fabric.clip_gradients(self.wrapped, self.optimizer, max_norm=max_norm, error_if_nonfinite=False)
        self.optimizer.step()


DDP = Subject(
    "lightning.ddp",
    contract="trainer",
    build=WithFabric,
    lacks=["closures", "owns"],
    known="torch:ddp",
    package="lightning-fabric",
)


@conformance(DDP)
def test_ddp(case: Any) -> None:
    case.run()
