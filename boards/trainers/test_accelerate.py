"""accelerate: a model and an optimizer that ``prepare`` has wrapped, under DDP and FSDP2."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from everyrank.suites import Subject, conformance
from everyrank.suites.trainer.subjects.common import Adapter
from torch import nn

accelerate = pytest.importorskip("accelerate", reason="pip install accelerate")


class Accelerated(Adapter):
    def wrap(self, model: nn.Module) -> Any:
        handlers = [accelerate.DistributedDataParallelKwargs(find_unused_parameters=True)]
        self.accelerator = accelerate.Accelerator(cpu=True, kwargs_handlers=handlers)
        return self.accelerator.prepare(model)

    def optimize(self, optimizer_class: Callable[..., Any], parameters: list[Any], args: Any, kwargs: Any) -> Any:
        return self.accelerator.prepare(optimizer_class(parameters, *args, **kwargs))

    def step(self, *batches: Any, max_norm: float | None = None) -> Any:
        self.wrapped.zero_grad()
        for number, batch in enumerate(batches, 1):
            with self.accelerator.no_sync(self.wrapped) if number < len(batches) else nullcontext():
                self.accelerator.backward(batch.loss(self.wrapped))
        if max_norm is not None:
            self.accelerator.clip_grad_norm_(self.wrapped.parameters(), max_norm)
        self.optimizer.step()


DDP = Subject(
    "accelerate.ddp",
    contract="trainer",
    build=Accelerated,
    lacks=["closures", "owns"],
    known="torch:ddp",
    package="accelerate",
)


@conformance(DDP)
def test_ddp(case: Any) -> None:
    case.run()
