"""Rogues of context parallelism."""

from __future__ import annotations

from typing import Any

import torch

from tests.parity.parallel.collectives import Gather
from tests.parity.parallel.parts import attend
from tests.parity.parallel.rogue import Rogues
from tests.parity.parallel.subject import ByHand
from tests.parity.parallel.subjects.context import Context, ContextZigzag, GatheringCore

ROGUES = Rogues()


@ROGUES.add(
    "common mistake: each part counts its positions from 0",
    "forward",
    "positions blocks.0* tokens",
    "shifted",
)
class PositionsBeginAnew(Context):
    def positions(self, chosen: torch.Tensor) -> torch.Tensor:
        return torch.arange(len(chosen))


@ROGUES.add("verl#4250: labels are rolled after they were cut", "forward loss", "losses *")
class RollsLabelsOfItsPart(Context):
    def labels(self, labels: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        return super().labels(labels, chosen).roll(1, 1)


@ROGUES.add("common mistake: the zigzag is applied to tokens, and not to labels", "forward loss", "losses *")
class CutsLabelsInHalves(ContextZigzag):
    def labels(self, labels: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        return labels.chunk(self.size, 1)[self.rank]


@ROGUES.add(
    "common mistake: the zigzag is applied to tokens, and not to positions",
    "forward",
    "positions blocks.0* tokens",
    pattern="from-index",
)
class CountsPositionsInHalves(ContextZigzag):
    def positions(self, chosen: torch.Tensor) -> torch.Tensor:
        return torch.arange(self.length).chunk(self.size)[self.rank]


class _OwnKeys(GatheringCore):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return attend(q, k, v, positions, positions)


@ROGUES.add(
    "sglang#33353: keys and values stay on their rank", "forward", "blocks.0.attention*", "from-index not-reduced"
)
class AttendsToItsOwnPart(Context):
    core = _OwnKeys


class _KeysInOrder(GatheringCore):
    def key_positions(self, positions: torch.Tensor) -> torch.Tensor:
        return torch.arange(len(positions) * torch.distributed.get_world_size(self.group))


@ROGUES.add("common mistake: the mask takes gathered keys to be in order", "forward", "blocks.0.attention*")
class MasksKeysInOrder(ContextZigzag):
    core = _KeysInOrder


class _KeysOfTheQueries(GatheringCore):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return attend(q, self.all_of(k), self.all_of(v), positions - positions[0], self.key_positions(positions))


@ROGUES.add(
    "common mistake: a causal mask from local indices of queries", "forward", "blocks.0.attention*", "from-index"
)
class MasksByLocalIndex(Context):
    core = _KeysOfTheQueries


class _CutGradients(GatheringCore):
    def all_of(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = Gather.apply(x, 2, self.group)
        return out


@ROGUES.add(
    "Megatron-LM#1464: wrong gradients of keys and values under context parallelism",
    "activation-gradient",
    "blocks.1.attention.v",
    "lacks-others",
)
class CutsGradientsOfKeys(Context):
    core = _CutGradients


@ROGUES.add("common mistake: gradients are not reduced over the parts of a sequence", "gradient", "*", "not-reduced")
class ReducesNothing(Context):
    def finish(self, model: Any) -> None:
        pass


@ROGUES.add("Megatron-LM#906, #673: gradients over parts of a sequence are averaged", "gradient", "*", "sum-for-mean")
class AveragesParts(Context):
    def over_parts(self, gradient: torch.Tensor) -> torch.Tensor:
        return super().over_parts(gradient) / self.size


@ROGUES.add("transformers#48167: the loss is cp_size times what it is", "loss", "*", "sum-for-mean")
class LossIsTimesTheParts(ByHand, Context):
    def report(self, loss: torch.Tensor) -> torch.Tensor:
        return super().report(loss) * self.size


@ROGUES.add(
    "common mistake: only weights are reduced, and norms are taken for replicas",
    "gradient",
    "norm.* *.ln?.*",
    "not-reduced",
)
class ReducesMatricesOnly(Context):
    def is_reduced(self, name: str) -> bool:
        return "norm" not in name and "ln" not in name
