"""What is known before a run: the plain model, and what each rank holds of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from everyrank.parity.errors import Unusable
from everyrank.parity.setup.given import Setup, own_dtype
from everyrank.parity.setup.memory import collect
from everyrank.parity.setup.models import parallelize, plain
from everyrank.parity.setup.ranks import Ranks, groups_of_torch, named_groups
from everyrank.parity.setup.split import Cut, choose, cuts_weights
from everyrank.parity.values import dye
from everyrank.parity.values.dye import Holdings


@dataclass(frozen=True)
class Known:
    """What is known of the plain model without building it again, which takes long if it is large."""

    dtype: torch.dtype
    """The dtype in which the user trains."""
    sizes: dict[str, torch.Size]
    """The sizes of its parameters, by name."""
    sums: dict[str, float]
    """The sums of their first values."""

    @property
    def elements(self) -> int:
        """How many elements it has."""
        return sum(size.numel() for size in self.sizes.values())


def same_model(setup: Setup, ranks: Ranks) -> Known:
    """Check that the plain model is the same on each rank; that it is so each time is seen when it is built again."""
    model = plain(setup)
    sizes = {name: each.shape for name, each in model.named_parameters()}
    known = Known(own_dtype(model), sizes, _sums(model))
    del model
    if setup.one_rank:
        # What is built next is built on all ranks, and may be another.
        _check_again(ranks, known, _sums(plain(setup)))
    for rank, other in enumerate(ranks.gather(known.sums)):
        for name, value in known.sums.items():
            if other.get(name) != value:
                raise Unusable(
                    f"model() returns other values of {name} on rank {rank} than on rank {ranks.rank}: the plain "
                    "model is the same on every rank; what differs by rank belongs into parallelize."
                )
    return known


def _check_again(ranks: Ranks, known: Known, sums: dict[str, float]) -> None:
    """Raise Unusable on all ranks if a rank's model has other values than the first time."""
    other = next((name for name, value in known.sums.items() if sums.get(name) != value), None)
    for name in ranks.gather(other):
        if name is not None:
            raise Unusable(f"model() returns other values of {name} each time: build it from the same numbers.")


def _sums(model: torch.nn.Module) -> dict[str, float]:
    return {name: float(each.detach().sum(dtype=torch.float64)) for name, each in model.named_parameters()}


@dataclass(frozen=True)
class Found:
    """What the dye shows of the parallel model on this rank."""

    holdings: Holdings
    cut: Cut
    mixed: torch.dtype | None
    """The dtype in which FSDP2's modules compute, if it is another than their parameters'."""
    groups: Mapping[str, list[list[int]]]
    """The groups of all ranks, by name."""


def dyed(setup: Setup, ranks: Ranks, known: Known) -> Found:
    """Dye the plain model, make it parallel, and read what this rank holds; also how it cuts a batch."""

    def prepare(fresh: torch.nn.Module) -> None:
        if not setup.one_rank:
            _check_again(ranks, known, _sums(fresh))
        dye.dye(fresh)

    parallel = parallelize(setup, torch.float64, exact=True, prepare=prepare)
    held = dye.read(parallel.modules, known.sizes, dye.offsets(known.sizes), parallel.rename)
    cut = any(ranks.gather(cuts_weights(held, known.sizes)))
    chosen = choose(setup, parallel.modules, cut, ranks.rank, ranks.size)
    found = Found(held, chosen, parallel.mixed, named_groups(ranks, groups_of_torch(parallel.modules)))
    del parallel
    collect(known.elements)
    return found
