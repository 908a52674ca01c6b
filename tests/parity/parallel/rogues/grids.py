"""Rogues of a grid of data and tensor parallelism."""

from __future__ import annotations

from typing import Any

import torch

from tests.parity.parallel.collectives import summed
from tests.parity.parallel.rogue import Rogues
from tests.parity.parallel.subjects.grid import Grid, GridSequence
from tests.parity.parallel.subjects.megatron import MegatronSequence

ROGUES = Rogues()


@ROGUES.add(
    "common mistake: gradients are averaged over the wrong dimension of the grid",
    "gradient",
    size=4,
    pattern="not-reduced replicas-differ",
)
class AveragesOverTheOtherGroup(Grid):
    def mean(self, gradient: torch.Tensor) -> torch.Tensor:
        return summed(gradient, self.parts_group) / 2


@ROGUES.add(
    "torchtune#2420: a divisor of all ranks, in place of those with other rows",
    "gradient norm",
    pattern="sum-for-mean",
    size=4,
)
class DividesByAllRanks(Grid):
    def mean(self, gradient: torch.Tensor) -> torch.Tensor:
        return super().mean(gradient) / 2


@ROGUES.add("common mistake: data parallel ranks are not reduced", "gradient", pattern="not-reduced", size=4)
class ReducesNoRows(Grid):
    def mean(self, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


@ROGUES.add("common mistake: rows go by the other dimension of the grid", "forward activation-gradient", "*", size=4)
class RowsGoByTheOtherDimension(Grid):
    def data_rank(self) -> int:
        return self.rank % 2


@ROGUES.add("Megatron-LM#2263 (asked): the norm is reduced over all ranks", "norm", size=4)
class NormIsOverAllRanks(Grid):
    def over_parts(self, square: torch.Tensor) -> torch.Tensor:
        return summed(square, None)


@ROGUES.add(
    "Megatron-LM#1446: norms are reduced over rows, and not over the sequence",
    "gradient",
    "norm.* *.ln?.* *.bias positions.*",
    "not-reduced",
    size=4,
)
class ReducesRowsOnly(GridSequence):
    def finish(self, model: Any) -> None:
        Grid.finish(self, model)


@ROGUES.add(
    "common mistake: norms are reduced over the sequence, and not over rows", "gradient", "*", "not-reduced", size=4
)
class ReducesTheSequenceOnly(GridSequence):
    def finish(self, model: Any) -> None:
        MegatronSequence.finish(self, model)


@ROGUES.add(
    "common mistake: norms are reduced over all ranks, and then once more over rows",
    "gradient",
    "norm.* *.ln?.* *.bias positions.*",
    "sum-for-mean",
    size=4,
)
class ReducesRowsAgain(GridSequence):
    def over_sequence(self, gradient: torch.Tensor) -> torch.Tensor:
        return summed(gradient, None)
