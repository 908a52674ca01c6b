"""Pipelines by torch's means: ``torch.distributed.pipelining``."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from tests.parity.parallel.parts import Losses
from tests.parity.parallel.subject import Batch
from tests.parity.parallel.subjects.pipeline import Pipeline


class Stage(nn.Module):
    """A stage's modules, under the plain model's names, and what runs them."""

    tokens: Any
    positions: Any
    blocks: Any
    norm: Any
    head: Any
    schedule: list[Any]

    def __init__(self, model: Any) -> None:
        super().__init__()
        for name, module in model.named_children():
            setattr(self, name, module)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        positions, rows = torch.arange(x.shape[1]), torch.zeros(len(x), dtype=torch.int64)
        if hasattr(self, "tokens"):
            x = self.tokens(x) + self.positions(positions)
        for block in self.blocks.values():
            x = block(x, positions, rows)
        out: torch.Tensor = self.head(self.norm(x)) if hasattr(self, "head") else x
        return out


class TorchPipeline(Pipeline):
    """GPipe. The labels travel with the number of tokens that count, as one tensor."""

    schedule_class: ClassVar[type[Any]] = ScheduleGPipe

    def parallelize(self, model: Any) -> Any:
        stage = Stage(super().parallelize(model))
        runs = PipelineStage(stage, self.rank, self.size, torch.device("cpu"))
        stage.schedule = [self.make_schedule(runs)]
        return stage

    def make_schedule(self, stage: PipelineStage) -> Any:
        return self.schedule_class(stage, self.microbatches, self.loss_of_a_part)

    def loss_of_a_part(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return self.share(Losses()(logits, target[:, :-1]), {"total": target[:, -1]})

    def accumulate(self, model: Any, batch: Batch) -> torch.Tensor:
        losses: list[torch.Tensor] = []
        target = torch.cat([batch["labels"], batch["total"][:, None]], 1)
        inputs = (batch["tokens"],) if self.is_first else ()
        options = {"target": target, "losses": losses} if self.is_last else {}
        model.schedule[0].step(*inputs, **options)
        zero = torch.zeros((), dtype=next(model.parameters()).dtype)
        return torch.stack(losses).mean().detach() if self.is_last else zero


class TorchPipelineAlternating(TorchPipeline):
    """1F1B."""

    schedule_class = Schedule1F1B
