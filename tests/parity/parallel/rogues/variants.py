"""Rogues of models of others: shared heads, adapters, a recurrence, packed documents, two losses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from tests.parity.parallel.models import PADDING, Recurrence
from tests.parity.parallel.parts import IGNORED
from tests.parity.parallel.rogue import Rogues
from tests.parity.parallel.subject import Batch
from tests.parity.parallel.subjects.replicas import Averaged, ZeroByHand
from tests.parity.parallel.subjects.variants import (
    AveragedTwoLosses,
    ContextPacked,
    ContextRecurrent,
    ExpertsScaled,
    FsdpMuon,
    HandedOver,
    MegatronAdapted,
    MegatronPadded,
    MegatronShared,
    Muon,
    PackedGatheringCore,
    PaddedVocabulary,
    orthogonal,
)

ROGUES = Rogues()


@ROGUES.add(
    "common mistake: of two losses, one is trained as a mean over a rank's own tokens, and logged as the whole's",
    "activation-gradient",
    "ahead*",
)
class TwoNormalizers(AveragedTwoLosses):
    def loss(self, model: Any, batch: Batch) -> torch.Tensor:
        right = super().loss(model, batch)
        if len(batch["row"]) == self.rows:
            return right
        own = (batch["labels"][:, 1:] != IGNORED).sum() * (self.rows / len(batch["row"]))
        wrong = super().loss(model, {**batch, "further": own.clamp(min=1)[None]})
        return right.detach() + wrong - wrong.detach()


@ROGUES.add(
    "common mistake: keys and values that heads share are taken for whole, and nobody adds them up",
    "gradient",
    "*.attention.[kv].*",
    "not-reduced",
)
class ForgetsSharedHeads(MegatronShared):
    def is_shared(self, name: str) -> bool:
        return False


@ROGUES.add(
    "common mistake (peft under tensor parallelism): an adapter's first matrix has a part of its gradient",
    "gradient",
    "*.a",
    "not-reduced",
)
class ForgetsTheAdaptersFirst(MegatronAdapted):
    def over_parts(self, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


class _PaddedOnEach(PaddedVocabulary):
    def padding(self) -> int | None:
        return PADDING


@ROGUES.add(
    "common mistake: the padding index is that of the whole vocabulary on every rank",
    "gradient",
    "tokens.weight",
    "zero-rows",
)
class PadsOnEachRank(MegatronPadded):
    vocabulary = _PaddedOnEach


class _CountsAnew(PackedGatheringCore):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        self.length = len(positions)
        return super().forward(q, k, v, positions)

    def document(self, positions: torch.Tensor) -> torch.Tensor:
        return super().document(positions % self.length)


@ROGUES.add(
    "common mistake: each rank numbers the documents of its part of a row from 0",
    "forward",
    "blocks.0.attention.core",
)
class NumbersDocumentsAnew(ContextPacked):
    packed = _CountsAnew


class _KeepsItsState(HandedOver):
    def states(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return Recurrence.states(self, x, positions)


@ROGUES.add(
    "common mistake: each part of a sequence begins with an empty state",
    "forward",
    "blocks.0.attention.core",
    "from-index",
)
class BeginsWithAnEmptyState(ContextRecurrent):
    handed = _KeepsItsState


class _HandsOverAConstant(HandedOver):
    def handed(self, end: torch.Tensor) -> torch.Tensor:
        return super().handed(end).detach()


@ROGUES.add(
    "common mistake: a state that is handed over has no backward",
    "activation-gradient",
    "blocks.1.attention.v",
    "lacks-others",
)
class HandsOverWithoutABackward(ContextRecurrent):
    handed = _HandsOverAConstant


@ROGUES.add(
    "common mistake: a router's learned scale stands outside of what is reduced",
    "gradient",
    "*.mlp.scale",
    "not-reduced",
)
class ScalesTheRouterByRank(ExpertsScaled):
    def finish(self, model: nn.Module) -> None:
        scales = [each for name, each in model.named_parameters() if name.endswith(".scale")]
        own = [each.grad.clone() for each in scales if each.grad is not None]
        super().finish(model)
        for scale, gradient in zip(scales, own, strict=True):
            scale.grad = gradient


class OfShards(Muon):
    def direction(self, momentum: Any) -> Any:
        if momentum.ndim != 2:
            return momentum
        made = momentum.clone()
        made.to_local().copy_(orthogonal(momentum.to_local()))
        return made


@ROGUES.add(
    "docs/findings/muon.md and others: Newton and Schulz see a shard of the matrix", "update", "*.weight", "of-parts"
)
class MakesShardsOrthogonal(FsdpMuon):
    muon = OfShards


class _Narrow(torch.optim.AdamW):
    def step(self, closure: Any = None) -> Any:
        returned = super().step(closure)
        for state in self.state.values():
            for name in ("exp_avg", "exp_avg_sq"):
                state[name].copy_(state[name].bfloat16())
        return returned


@ROGUES.add("common mistake: the sharded optimizer keeps its moments in bfloat16", "update")
class KeepsMomentsInBfloat16(ZeroByHand):
    def inner(self, params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return _Narrow(params, lr=1e-2, weight_decay=0.1)


@ROGUES.add(
    "common mistake: the sum over ranks is divided by a rank's own number of tokens",
    "gradient",
    pattern="own-tokens",
)
class DividesByItsOwnTokens(Averaged):
    def finish(self, model: nn.Module) -> None:
        super().finish(model)
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(self.whole_batch_tokens / (self.size * self.own_tokens))

    def mine(self, batch: Batch) -> Batch:
        mine = super().mine(batch)
        self.whole_batch_tokens = float(batch["total"][0])
        self.own_tokens = float((mine["labels"] != IGNORED).sum())
        return mine

    whole_batch_tokens = own_tokens = 1.0
