"""Tensor parallelism by torch's means: ``parallelize_module`` with DTensors."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from tests.parity.parallel.parts import IGNORED
from tests.parity.parallel.subject import Batch, ByHand, Parallel
from tests.parity.parallel.transformer import Transformer


class TorchTensor(Parallel):
    """Projections and perceptrons cut by column and row; embedding and head cut, too."""

    split = "none"

    def __init__(self) -> None:
        super().__init__()
        self.mesh = init_device_mesh("cpu", (self.size,))

    def parallelize(self, model: Any) -> Any:
        parallelize_module(model, self.mesh, self.edges())
        for block in model.blocks.values():
            parallelize_module(block, self.mesh, self.attention() | self.perceptron())
        return model

    def edges(self) -> dict[str, ParallelStyle]:
        return {
            "tokens": RowwiseParallel(input_layouts=Replicate()),
            "head": ColwiseParallel(output_layouts=Replicate()),
        }

    def attention(self) -> dict[str, ParallelStyle]:
        columns = {f"attention.{name}": ColwiseParallel() for name in "qkv"}
        return {**columns, "attention.out": RowwiseParallel()}

    def perceptron(self) -> dict[str, ParallelStyle]:
        return {"mlp.up": ColwiseParallel(), "mlp.down": RowwiseParallel()}


class TorchSequence(TorchTensor):
    """Between the cut layers, each rank has a part of the sequence."""

    def edges(self) -> dict[str, ParallelStyle]:
        return {
            "tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "positions": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(0)),
            "norm": SequenceParallel(),
            "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
        }

    def attention(self) -> dict[str, ParallelStyle]:
        gather = PrepareModuleInput(input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None))
        return {
            "ln1": SequenceParallel(),
            "attention": gather,
            **{f"attention.{name}": ColwiseParallel() for name in "qkv"},
            "attention.out": RowwiseParallel(output_layouts=Shard(1)),
        }

    def perceptron(self) -> dict[str, ParallelStyle]:
        return {
            "ln2": SequenceParallel(),
            "mlp": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
            "mlp.up": ColwiseParallel(),
            "mlp.down": RowwiseParallel(output_layouts=Shard(1)),
        }


class Scores(Transformer):
    """A transformer that returns the scores of the vocabulary."""

    def judge(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.norm(x))
        return scores


class TorchVocabulary(ByHand, TorchTensor):
    """Scores that stay cut over the vocabulary: their cross entropy is torch's ``loss_parallel``."""

    def model(self) -> nn.Module:
        return Scores(self.transformer)

    def edges(self) -> dict[str, ParallelStyle]:
        return {**super().edges(), "head": ColwiseParallel(use_local_output=False)}

    def backward_context(self, model: Any, is_last: bool) -> AbstractContextManager[Any]:
        return loss_parallel()

    def loss(self, model: Any, batch: Batch) -> torch.Tensor:
        scores = model(batch["tokens"], batch["labels"], batch["row"])
        losses = self.scored(scores.flatten(0, 1), batch["labels"].flatten())
        return self.share(losses.view(batch["labels"].shape), batch)

    def scored(self, scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the loss of each token."""
        return whole(nn.functional.cross_entropy(scores, labels, ignore_index=IGNORED, reduction="none"))


def whole(value: torch.Tensor) -> torch.Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value
