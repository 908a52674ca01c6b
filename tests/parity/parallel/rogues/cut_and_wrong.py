"""Rogues whose first wrong output is cut, too: its part of the plain model's is not found by its values."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from tests.parity.parallel.rogue import Rogues
from tests.parity.parallel.subjects.context import ContextTurning, TurningGatheringCore
from tests.parity.parallel.subjects.megatron import Column, Megatron, MegatronSequence, ScatteringVocabulary
from tests.parity.parallel.transformer import Core

ROGUES = Rogues()


class _Scaled(Column):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scaled: torch.Tensor = super().forward(x) * len(self.weight) ** -0.5
        return scaled


@ROGUES.add(
    "common mistake: queries are scaled where they are made, and in the attention",
    "forward",
    "blocks.0.attention.q",
)
class ScalesQueriesTwice(Megatron):
    def cut_attention(self, attention: Any) -> None:
        super().cut_attention(attention)
        attention.q.__class__ = _Scaled


class _Squashed(Column):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 5 * torch.tanh(super().forward(x) / 5)


@ROGUES.add("common mistake: logits are capped on the way that is cut, and on no other", "forward", "head")
class CapsItsPartOfTheLogits(Megatron):
    def cut_edges(self, model: Any) -> None:
        super().cut_edges(model)
        model.head.__class__ = _Squashed


class _Unbiased(Column):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(self.enter(x), self.weight)


@ROGUES.add("common mistake: the bias of a layer that is cut is left out", "forward", "blocks.0.mlp.up")
class LeavesOutTheBiasOfItsPart(Megatron):
    def cut_perceptron(self, mlp: Any) -> None:
        super().cut_perceptron(mlp)
        mlp.up.__class__ = _Unbiased


class _Bidirectional(Core):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v)


@ROGUES.add(
    "common mistake: the attention of a rank's heads sees what comes later", "forward", "blocks.0.attention.core"
)
class ForgetsTheMaskOfItsHeads(Megatron):
    def cut_attention(self, attention: Any) -> None:
        super().cut_attention(attention)
        attention.core = _Bidirectional()


class _Unmasked(ScatteringVocabulary):
    def is_strange(self, local: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(local, dtype=torch.bool)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return super().forward(tokens % len(self.weight) + self.first())


@ROGUES.add(
    "common mistake: an embedding cut by words answers for those of others, and its sum is cut by the sequence",
    "forward",
    "tokens",
)
class AnswersForStrangeWordsInParts(MegatronSequence):
    vocabulary = _Unmasked


class _Later(ScatteringVocabulary):
    calls = 0

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(tokens) * (1.0 if self.calls <= 2 else 1.5)


@ROGUES.add("common mistake: the embedding's scale is applied once a cache is filled", "forward", "tokens")
class ScalesItsPartOfTheEmbeddingLater(MegatronSequence):
    vocabulary = _Later


class _AsLongAsMine(TurningGatheringCore):
    def whole_length(self, mine: int) -> int:
        return mine


@ROGUES.add(
    "common mistake: rotary positions are scaled by the length of a rank's part",
    "forward",
    "*.0.attention.core.turns",
)
class TurnsByTheLengthOfItsPart(ContextTurning):
    core = _AsLongAsMine
