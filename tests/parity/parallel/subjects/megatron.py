"""Tensor parallelism written by hand, after Megatron-LM: cut layers, a cut vocabulary, and sequence parallelism."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Shard

from tests.parity.parallel.collectives import (
    Copy,
    GatherForParts,
    Sum,
    SumAndScatter,
    own_part,
    summed,
)
from tests.parity.parallel.parts import IGNORED
from tests.parity.parallel.subject import Parallel


class Cut(nn.Module):
    """A layer of which this rank has a part."""

    bias: nn.Parameter

    def __init__(self, subject: Megatron, layer: Any, weight_dim: int | None, bias_dim: int | None) -> None:
        super().__init__()
        self.subject = [subject]  # in a list, so that it is no attribute of the module's state
        self.group = subject.parts_group
        self.weight = nn.Parameter(self.take(layer.weight, weight_dim))
        if getattr(layer, "bias", None) is not None:
            self.bias = nn.Parameter(self.take(layer.bias, bias_dim))

    def take(self, whole: torch.Tensor, dim: int | None) -> torch.Tensor:
        """Return this rank's part of a parameter."""
        return whole.detach().clone() if dim is None else own_part(whole.detach(), dim, self.group).clone()


class Column(Cut):
    """A linear layer whose outputs are cut. Its input is whole on every rank."""

    def __init__(self, subject: Megatron, layer: nn.Linear) -> None:
        super().__init__(subject, layer, 0, 0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(self.enter(x), self.weight, getattr(self, "bias", None))

    def enter(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = Copy.apply(x, self.group)
        return out


class Row(Cut):
    """A linear layer whose inputs are cut. Its bias is added once, to the sum."""

    def __init__(self, subject: Megatron, layer: nn.Linear) -> None:
        super().__init__(subject, layer, 1, None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.leave(F.linear(x, self.weight)) + self.bias

    def leave(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = Sum.apply(x, self.group)
        return out


class Vocabulary(Cut):
    """An embedding whose rows are cut: a rank answers for its own ids, and with zeros for the others."""

    def __init__(self, subject: Megatron, layer: nn.Embedding) -> None:
        super().__init__(subject, layer, 0, None)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        local = tokens - self.first()
        strange = self.is_strange(local)
        found = F.embedding(local.masked_fill(strange, 0), self.weight)
        return self.leave(found.masked_fill(strange[..., None], 0))

    def first(self) -> int:
        return dist.get_rank(self.group) * len(self.weight)

    def is_strange(self, local: torch.Tensor) -> torch.Tensor:
        return (local < 0) | (local >= len(self.weight))

    def leave(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = Sum.apply(x, self.group)
        return out


class VocabularyLosses(nn.Module):
    """The cross entropy of logits whose last dimension is cut."""

    def __init__(self, group: Any) -> None:
        super().__init__()
        self.group = group

    def forward(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        counts = labels != IGNORED
        shifted = logits - self.largest(logits)[..., None]
        total = self.over_parts(shifted.exp().sum(-1))
        return (total.log() - self.wanted(shifted, labels.where(counts, 0))) * counts

    def largest(self, logits: torch.Tensor) -> torch.Tensor:
        largest = logits.detach().amax(-1)
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=self.group)
        return largest

    def wanted(self, shifted: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        local = labels - self.first(shifted.shape[-1])
        own = (local >= 0) & (local < shifted.shape[-1])
        picked = shifted.gather(-1, local.where(own, 0)[..., None]).squeeze(-1)
        return self.over_parts(picked * own)

    def first(self, width: int) -> int:
        return dist.get_rank(self.group) * width

    def over_parts(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = Sum.apply(x, self.group)
        return out


class Megatron(Parallel):
    """Every rank computes a part of each layer, for the whole batch."""

    split = "none"
    cuts = {
        "*.[qkv].weight": 0,
        "*.[qkv].bias": 0,
        "*.up.weight": 0,
        "*.up.bias": 0,
        "*.out.weight": 1,
        "*.down.weight": 1,
        "tokens.weight": 0,
        "head.*": 0,
    }
    column: type[Column] = Column
    row: type[Row] = Row
    vocabulary: type[Vocabulary] = Vocabulary
    vocabulary_losses: type[VocabularyLosses] = VocabularyLosses

    def parallelize(self, model: Any) -> Any:
        for block in model.blocks.values():
            self.cut_attention(block.attention)
            self.cut_perceptron(block.mlp)
        self.cut_edges(model)
        return model

    def cut_attention(self, attention: Any) -> None:
        for name in "qkv":
            setattr(attention, name, self.column(self, getattr(attention, name)))
        attention.out = self.row(self, attention.out)

    def cut_perceptron(self, mlp: Any) -> None:
        mlp.up = self.column(self, mlp.up)
        mlp.down = self.row(self, mlp.down)

    def cut_edges(self, model: Any) -> None:
        model.tokens = self.vocabulary(self, model.tokens)
        model.head = self.column(self, model.head)
        model.losses = self.vocabulary_losses(self.parts_group)


class MegatronClipped(Megatron):
    """A clip that bites, by the norm over all parts: what every rank has counts once."""

    clip = 0.05

    def shrink(self, model: Any, clip: float) -> torch.Tensor:
        norm = self.norm(model)
        scale = (clip / (norm + 1e-6)).clamp(max=1.0)
        for parameter in model.parameters():
            self.scale(parameter, scale)
        return norm

    def norm(self, model: Any) -> torch.Tensor:
        cut, whole = torch.zeros(()).double(), torch.zeros(()).double()
        for name, parameter in model.named_parameters():
            square = parameter.grad.double().square().sum()
            cut, whole = (cut + square, whole) if self.is_cut(name) else (cut, whole + square)
        return (self.over_parts(cut) + whole).sqrt()

    def is_cut(self, name: str) -> bool:
        return self.dim(name) is not None

    def over_parts(self, square: torch.Tensor) -> torch.Tensor:
        return summed(square, self.parts_group)

    def scale(self, parameter: nn.Parameter, scale: torch.Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad.mul_(scale.to(parameter.grad.dtype))


class GatheringColumn(Column):
    """Its input is a part of the sequence."""

    def enter(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = GatherForParts.apply(x, 1, self.group)
        return out


class ScatteringRow(Row):
    """Its output is a part of the sequence."""

    def leave(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = SumAndScatter.apply(x, 1, self.group)
        return out


class ScatteringVocabulary(Vocabulary):
    """Its output is a part of the sequence."""

    def leave(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = SumAndScatter.apply(x, 1, self.group)
        return out


class MegatronSequence(Megatron):
    """Between the cut layers, each rank has a part of the sequence. What lies there has a part of its gradient."""

    column = GatheringColumn
    row = ScatteringRow
    vocabulary = ScatteringVocabulary
    #: The parameters that see a part of the sequence.
    partial: tuple[str, ...] = ("ln1.", "ln2.", "norm.", "out.bias", "down.bias", "positions.")

    def cut_edges(self, model: Any) -> None:
        super().cut_edges(model)
        model.positions.register_forward_hook(self.own_positions)

    def own_positions(self, module: Any, args: Any, out: torch.Tensor) -> torch.Tensor:
        return own_rows(out, self.parts_group)

    def finish(self, model: Any) -> None:
        for name, parameter in model.named_parameters():
            if self.is_partial(name):
                parameter.grad = self.over_sequence(parameter.grad)

    def is_partial(self, name: str) -> bool:
        return any(part in name for part in self.partial)

    def over_sequence(self, gradient: torch.Tensor) -> torch.Tensor:
        return summed(gradient, self.parts_group)


def own_rows(x: torch.Tensor, group: Any) -> torch.Tensor:
    """Return this rank's part of the first dimension; the gradient of the rest is zero."""
    return x.chunk(dist.get_world_size(group))[dist.get_rank(group)]


def annotate(layer: nn.Module, size: int, placement: Callable[[str], Placement]) -> None:
    """Make DTensors of a layer's parts, each with the placement that its name has."""
    mesh = init_device_mesh("cpu", (size,), mesh_dim_names=("tp",))
    for name, each in [*layer.named_parameters()]:
        part = DTensor.from_local(each.detach(), mesh, [placement(name)], run_check=False)
        setattr(layer, name, nn.Parameter(part))


class AnnotatedColumn(Column):
    """Its parts are DTensors, for what reads placements; it computes with what this rank has."""

    def __init__(self, subject: Megatron, layer: nn.Linear) -> None:
        super().__init__(subject, layer)
        annotate(self, subject.size, self.placement)

    def placement(self, name: str) -> Placement:
        return Shard(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        part: Any = self
        return F.linear(self.enter(x), part.weight.to_local(), part.bias.to_local())


class MegatronAnnotated(Megatron):
    """The parts of perceptrons say where they are."""

    annotated: type[AnnotatedColumn] = AnnotatedColumn

    def cut_perceptron(self, mlp: Any) -> None:
        mlp.up, mlp.down = self.annotated(self, mlp.up), self.row(self, mlp.down)

    def optimizer(self, params: Iterable[Any]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(params, lr=1e-2, weight_decay=0.1, foreach=False)
