"""Rogues of layers that are cut by hand."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from tests.parity.parallel.rogue import Rogues
from tests.parity.parallel.subjects.megatron import Column, Megatron, Row, Vocabulary

ROGUES = Rogues()


class _BiasOfEach(Row):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.leave(F.linear(x, self.weight, self.bias))


@ROGUES.add(
    "text-generation-inference#1036, slapo#10: the bias is added on every rank, before the sum",
    "forward",
    "blocks.0.attention*",
)
class AddsTheBiasOnEveryRank(Megatron):
    row = _BiasOfEach


class _Unsummed(Row):
    def leave(self, x: torch.Tensor) -> torch.Tensor:
        return x


@ROGUES.add(
    "common mistake: the output of a row-cut layer is not summed",
    "forward",
    "blocks.0.attention*",
    "not-reduced replicas-differ",
)
class DoesNotSumRows(Megatron):
    row = _Unsummed


class _Mean(Row):
    def leave(self, x: torch.Tensor) -> torch.Tensor:
        return super().leave(x) / dist.get_world_size(self.group)


@ROGUES.add("common mistake: an all-reduce with AVG", "forward", "blocks.0.attention*")
class AveragesRows(Megatron):
    row = _Mean


class _WithoutBackward(Column):
    def enter(self, x: torch.Tensor) -> torch.Tensor:
        return x


@ROGUES.add(
    "SkyRL#1886: the gradient of a column-cut layer's input is not summed",
    "activation-gradient",
    "norm head losses blocks.*",
    "not-reduced",
)
class DoesNotSumGradients(Megatron):
    column = _WithoutBackward


@ROGUES.add(
    "SkyRL#1886: only the head's input is not summed", "activation-gradient", "norm head losses", "not-reduced"
)
class DoesNotSumTheHeadsGradient(Megatron):
    def cut_edges(self, model: Any) -> None:
        super().cut_edges(model)
        model.head.__class__ = _WithoutBackward


class _SummedAgain(Row):
    def leave(self, x: torch.Tensor) -> torch.Tensor:
        whole = super().leave(x)
        whole.register_hook(self.again)
        return whole

    def again(self, gradient: torch.Tensor) -> torch.Tensor:
        total = gradient.clone()
        dist.all_reduce(total, group=self.group)
        return total


@ROGUES.add(
    "common mistake: a gradient that every rank has is summed once more",
    "activation-gradient gradient",
    "blocks.1.*",
)
class SumsTheDownsGradientAgain(Megatron):
    def cut_perceptron(self, mlp: Any) -> None:
        super().cut_perceptron(mlp)
        mlp.down.__class__ = _SummedAgain


class _Transposed(Column):
    def take(self, whole: torch.Tensor, dim: int | None) -> torch.Tensor:
        return super().take(whole.t() if whole.dim() == 2 else whole, dim)


@ROGUES.add("common mistake: a square weight is loaded transposed", "initialization", "*.v.weight", pattern="shifted")
class LoadsValuesTransposed(Megatron):
    def cut_attention(self, attention: Any) -> None:
        values = _Transposed(self, attention.v)
        super().cut_attention(attention)
        attention.v = values


class _FirstPart(Column):
    def take(self, whole: torch.Tensor, dim: int | None) -> torch.Tensor:
        return whole.detach().chunk(dist.get_world_size(self.group), dim or 0)[0].clone()


@ROGUES.add("common mistake: every rank loads the first part", "initialization", "*.up.*")
class LoadsTheFirstPartEverywhere(Megatron):
    def cut_perceptron(self, mlp: Any) -> None:
        up = _FirstPart(self, mlp.up)
        super().cut_perceptron(mlp)
        mlp.up = up


class _Reversed(Column):
    def take(self, whole: torch.Tensor, dim: int | None) -> torch.Tensor:
        parts = whole.detach().chunk(dist.get_world_size(self.group), dim or 0)
        return parts[len(parts) - 1 - dist.get_rank(self.group)].clone()


@ROGUES.add(
    "common mistake: ranks of the group are counted from the other end for one layer",
    "forward initialization",
    "blocks.*",
)
class CutsValuesFromTheOtherEnd(Megatron):
    def cut_attention(self, attention: Any) -> None:
        values = _Reversed(self, attention.v)
        super().cut_attention(attention)
        attention.v = values


class _OffByOne(Vocabulary):
    def first(self) -> int:
        return max(super().first() - 1, 0)


@ROGUES.add("common mistake: a part of the vocabulary that begins one id early", "forward", "tokens")
class VocabularyBeginsEarly(Megatron):
    vocabulary = _OffByOne


class _Unmasked(Vocabulary):
    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        local = tokens - self.first()
        return self.leave(F.embedding(local.masked_fill(self.is_strange(local), 0), self.weight))


@ROGUES.add("common mistake, no mask: strange ids are answered with the first row", "forward", "tokens")
class AnswersStrangeIds(Megatron):
    vocabulary = _Unmasked


class _Padded(Vocabulary):
    def is_strange(self, local: torch.Tensor) -> torch.Tensor:
        return super().is_strange(local) | (local == 3)


@ROGUES.add(
    "torchtitan#4637: padding_idx is an id of the whole vocabulary, and used on each part", "forward", "tokens"
)
class PadsEachPart(Megatron):
    vocabulary = _Padded


@ROGUES.add("common mistake: the optimizer was made before the layers were cut", "update", "*", "stale zero")
class StepsWhatWasReplaced(Megatron):
    def parallelize(self, model: Any) -> Any:
        optimizer = self.optimizer(list(model.parameters()))
        return super().parallelize(model), optimizer


@ROGUES.add(
    "pytorch#160169: replicas that drift, since nothing brings them together",
    "replicas update gradient",
    "*.ln1.*",
)
class DriftsByRank(Megatron):
    def parallelize(self, model: Any) -> Any:
        super().parallelize(model)
        for block in model.blocks.values():
            block.ln1.weight.register_hook(self.drift)
        return model

    def drift(self, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * (1 + 0.01 * self.rank)


@ROGUES.add(
    "common mistake: a weight is initialised on each rank from one seed, so parts are equal",
    "initialization",
    "*.up.weight",
)
class PartsStartAlike(Megatron):
    def cut_perceptron(self, mlp: Any) -> None:
        super().cut_perceptron(mlp)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            mlp.up.weight.copy_(torch.randn(mlp.up.weight.shape, generator=generator) / 6)
