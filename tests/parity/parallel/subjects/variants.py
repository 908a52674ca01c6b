"""What models of others need of the same ways: shared heads, adapters, a recurrence, packed documents, two losses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor

from tests.parity.parallel.collectives import GatherForParts, gathered, summed
from tests.parity.parallel.models import (
    PADDING,
    PackedCore,
    Recurrence,
    ScaledExperts,
    TwoHeads,
    adapted,
    freeze,
    grouped,
    padded,
    scaled,
    with_core,
)
from tests.parity.parallel.parts import IGNORED
from tests.parity.parallel.subject import Batch, ByHand
from tests.parity.parallel.subjects.context import Context
from tests.parity.parallel.subjects.experts import ExpertParallel, SpreadExperts
from tests.parity.parallel.subjects.megatron import Column, Cut, Megatron, Vocabulary
from tests.parity.parallel.subjects.replicas import Averaged
from tests.parity.parallel.subjects.sharded import Fsdp


class AveragedTwoLosses(Averaged):
    """Two losses, each a mean over its own number of tokens in the whole batch."""

    sizes = (2,)

    def model(self) -> nn.Module:
        return TwoHeads(self.transformer)

    def batch(self, step: int) -> Batch:
        batch = super().batch(step)
        further = (batch["labels"][:, 1:] != IGNORED).sum()
        return {**batch, "further": further.expand(self.rows).clone()}

    def loss(self, model: Any, batch: Batch) -> torch.Tensor:
        losses, further = model(batch["tokens"], batch["labels"], batch["row"])
        weight = self.rows / len(losses) / self.tokens_ahead(batch)
        total: torch.Tensor = self.share(losses, batch) + 0.3 * further.sum() * weight
        return total

    def tokens_ahead(self, batch: Batch) -> torch.Tensor:
        return batch["further"][0]


class WholeColumn(Column):
    """A layer that every rank has whole, and uses for its own heads."""

    def __init__(self, subject: Megatron, layer: nn.Linear) -> None:
        Cut.__init__(self, subject, layer, None, None)


class MegatronShared(Megatron, ByHand):
    """Heads of queries are cut. The keys and values that they share are on every rank: each has a part of a sum."""

    sizes = (2, 3)
    cuts = {**{name: dim for name, dim in Megatron.cuts.items() if "[qkv]" not in name}, "*.q.*": 0}

    def model(self) -> nn.Module:
        return grouped(self.transformer)

    def cut_attention(self, attention: Any) -> None:
        attention.q, attention.out = Column(self, attention.q), self.row(self, attention.out)
        attention.k, attention.v = WholeColumn(self, attention.k), WholeColumn(self, attention.v)

    def finish(self, model: Any) -> None:
        for name, parameter in model.named_parameters():
            if self.is_shared(name):
                parameter.grad = summed(parameter.grad, self.parts_group)

    def is_shared(self, name: str) -> bool:
        return any(part in name for part in (".k.", ".v."))


class AdaptedColumn(Column):
    """The second matrix of the adapter is cut, and the first is whole."""

    def __init__(self, subject: Megatron, layer: Any) -> None:
        super().__init__(subject, layer)
        self.a, self.b = nn.Parameter(self.take(layer.a, None)), nn.Parameter(self.take(layer.b, 0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.enter(x)
        return F.linear(x, self.weight, self.bias) + F.linear(F.linear(x, self.a), self.b)


class MegatronAdapted(Megatron, ByHand):
    """Adapters alone are trained. Each rank has a part of the gradient of their first matrix."""

    sizes = (2, 3)
    cuts = {**Megatron.cuts, "*.[qv].b": 0}

    def model(self) -> nn.Module:
        return adapted(self.transformer)

    def parallelize(self, model: Any) -> Any:
        model = super().parallelize(model)
        freeze(model)
        return model

    def cut_attention(self, attention: Any) -> None:
        attention.q, attention.v = AdaptedColumn(self, attention.q), AdaptedColumn(self, attention.v)
        attention.k, attention.out = self.column(self, attention.k), self.row(self, attention.out)

    def finish(self, model: Any) -> None:
        for name, parameter in model.named_parameters():
            if name.endswith(".a"):
                parameter.grad = self.over_parts(parameter.grad)

    def over_parts(self, gradient: torch.Tensor) -> torch.Tensor:
        return summed(gradient, self.parts_group)


class PaddedVocabulary(Vocabulary):
    """One row of the whole embedding is not trained."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        local = tokens - self.first()
        strange = self.is_strange(local)
        found = F.embedding(local.masked_fill(strange, 0), self.weight, padding_idx=self.padding())
        return self.leave(found.masked_fill(strange[..., None], 0))

    def padding(self) -> int | None:
        local = PADDING - self.first()
        return local if 0 <= local < len(self.weight) else None


class MegatronPadded(Megatron):
    """An embedding with a padding index, whose rows are cut."""

    sizes = (2, 3)
    vocabulary = PaddedVocabulary

    def model(self) -> nn.Module:
        return padded(self.transformer)


class PackedGatheringCore(PackedCore):
    """Attend with this rank's queries to the keys of all ranks' parts of the same documents."""

    def __init__(self, group: Any) -> None:
        super().__init__()
        self.group = group

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        k, v = GatherForParts.apply(k, 2, self.group), GatherForParts.apply(v, 2, self.group)
        return self.attend(q, k, v, positions, gathered(positions, 0, self.group))


class ContextPacked(Context):
    """Rows with several documents, cut anywhere."""

    sizes = (2, 3)
    packed: type[PackedGatheringCore] = PackedGatheringCore

    def model(self) -> nn.Module:
        return with_core(self.transformer, PackedCore)

    def parallelize(self, model: Any) -> Any:
        for block in model.blocks.values():
            block.attention.core = self.packed(self.parts_group)
        model.register_forward_pre_hook(self.enter)
        return model


class HandedOver(Recurrence):
    """The states at the ends of the parts before go on in this rank's part."""

    group: Any

    def states(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        own = super().states(x, positions)
        ends = self.handed(own[:, :, -1:])
        ages = positions[:, None] - gathered(positions[-1:], 0, self.group)[None, :]
        is_before = ages > positions[:, None] - positions[0]
        return own + torch.einsum("tsd,bhsd->bhtd", self.left_of(ages) * is_before[..., None], ends)

    def handed(self, end: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = GatherForParts.apply(end, 2, self.group)
        return out


class ContextRecurrent(Context):
    """A recurrence over a sequence that is cut."""

    sizes = (2, 3)
    handed: type[HandedOver] = HandedOver

    def model(self) -> nn.Module:
        return with_core(self.transformer, Recurrence)

    def parallelize(self, model: Any) -> Any:
        for block in model.blocks.values():
            block.attention.core.__class__ = self.handed
            block.attention.core.group = self.parts_group
        model.register_forward_pre_hook(self.enter)
        return model


class SpreadScaledExperts(ScaledExperts, SpreadExperts):
    """Some of the experts, behind a router with a scale."""


class ExpertsScaled(ExpertParallel):
    """A router with a learned scale, which all ranks have."""

    sizes = (2, 3)
    experts = SpreadScaledExperts

    def model(self) -> nn.Module:
        return scaled(self.transformer)


class Muon(torch.optim.Optimizer):
    """Momentum, made orthogonal where it is a matrix."""

    def __init__(self, params: Iterable[Any], lr: float = 1e-2) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    momentum = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
                    momentum.mul_(0.9).add_(parameter.grad)
                    parameter.add_(self.direction(momentum), alpha=-group["lr"])

    def direction(self, momentum: Any) -> Any:
        if momentum.ndim != 2:
            return momentum
        if not isinstance(momentum, DTensor):
            return orthogonal(momentum)
        whole = orthogonal(momentum.full_tensor())
        return distribute_tensor(whole, momentum.device_mesh, momentum.placements)


def orthogonal(x: torch.Tensor) -> torch.Tensor:
    """Return nearly the nearest matrix whose singular values are 1, by Newton and Schulz."""
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x


class FsdpMuon(Fsdp):
    """An optimizer that looks at whole matrices, of which ranks hold parts: it brings them together first."""

    sizes = (2, 3)
    muon: type[Muon] = Muon

    def optimizer(self, params: Iterable[Any]) -> torch.optim.Optimizer:
        params = [*params]
        return self.muon(params) if any(isinstance(each, DTensor) for each in params) else Muon(params)
