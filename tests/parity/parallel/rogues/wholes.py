"""Rogues of optimizers that look at whole tensors, and see a rank's shard."""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor

from tests.parity.parallel.rogue import Rogues
from tests.parity.parallel.subjects.wholes import (
    Adafactor,
    FsdpAdafactor,
    FsdpLamb,
    FsdpLars,
    FsdpShampoo,
    Lamb,
    Lars,
    OfWholes,
    Shampoo,
)

ROGUES = Rogues()


class _OfShards(OfWholes):
    def seen(self, x: torch.Tensor) -> torch.Tensor:
        return x.to_local() if isinstance(x, DTensor) else x

    def apply(self, parameter: torch.Tensor, change: torch.Tensor) -> None:
        self.seen(parameter).add_(change)


class _LambOfShards(_OfShards, Lamb):
    pass


class _LarsOfShards(_OfShards, Lars):
    pass


class _AdafactorOfShards(_OfShards, Adafactor):
    pass


class _ShampooOfShards(_OfShards, Shampoo):
    pass


@ROGUES.add("common mistake: LAMB takes the norms of a shard", "update", "*", "of-parts")
class TakesTheNormsOfAShard(FsdpLamb):
    ranks_kind = _LambOfShards


@ROGUES.add("common mistake: LARS takes the norms of a shard", "update", "*", "of-parts")
class TrustsTheNormsOfAShard(FsdpLars):
    ranks_kind = _LarsOfShards


@ROGUES.add("common mistake: Adafactor's columns and its clip are those of a shard", "update", "*", "of-parts")
class FactorsAShard(FsdpAdafactor):
    ranks_kind = _AdafactorOfShards


@ROGUES.add("common mistake: Shampoo's sides are those of a shard", "update", "*.weight", "of-parts")
class SpreadsOverAShard(FsdpShampoo):
    ranks_kind = _ShampooOfShards
