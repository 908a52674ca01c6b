"""What a rank's DTensors claim of where their elements are: what is seen of them shows whether it is so."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from everyrank.parity.values.names import parameters
from torch import nn
from torch.distributed.tensor import DTensor, Partial, Placement


@dataclass(frozen=True)
class Axis:
    """One axis of a mesh that has more than one rank, with what is claimed there."""

    name: str
    """"ranks" if it has no name."""
    placement: Placement
    groups: tuple[tuple[int, ...], ...]
    """The ranks along it, once for each position on the other axes."""

    @property
    def text(self) -> str:
        return f"claims {placement_text(self.placement)} over {self.name}"


@dataclass(frozen=True)
class Claim:
    """The placements of a DTensor over its mesh."""

    key: str
    """The parameter of this rank, or the module whose output it is."""
    sizes: tuple[int, ...]
    """How many ranks each axis has."""
    ranks: tuple[int, ...]
    names: tuple[str, ...]
    placements: tuple[Placement, ...]
    shape: tuple[int, ...]
    """The shape of the whole."""

    def axes(self) -> Iterator[Axis]:
        """Yield the axes with more than one rank."""
        ranks = torch.tensor(self.ranks).view(self.sizes)
        for axis, placement in enumerate(self.placements):
            if (size := self.sizes[axis]) > 1:
                groups = tuple(tuple(group) for group in ranks.movedim(axis, -1).reshape(-1, size).tolist())
                yield Axis(self.names[axis] if self.names else "ranks", placement, groups)

    def indices(self, rank: int) -> list[torch.Tensor]:
        """Return which indices of each dimension of the whole a rank has, as the placements have it."""
        found = [torch.arange(size) for size in self.shape]
        position = self.ranks.index(rank)
        for axis, placement in enumerate(self.placements):
            number = position // math.prod(self.sizes[axis + 1 :]) % self.sizes[axis]
            if (dimension := cut_by(placement)) is not None:
                found[dimension] = _shard(placement, found[dimension], self.sizes[axis], number)
        return found


def cut_by(placement: Placement) -> int | None:
    """Return the dimension that a placement cuts; FSDP2's shards of what is cut already are strided."""
    dimension: int | None = getattr(placement, "dim", None)
    return dimension


def _shard(placement: Placement, indices: torch.Tensor, count: int, number: int) -> torch.Tensor:
    pieces = indices.chunk(getattr(placement, "split_factor", 1))
    chunks = [piece.chunk(count) for piece in pieces]
    return torch.cat([each[number] if number < len(each) else indices[:0] for each in chunks])


def placement_text(placement: Placement) -> str:
    """Return a placement as it is written in code."""
    if (dimension := cut_by(placement)) is not None:
        factor = getattr(placement, "split_factor", None)
        return f"Shard({dimension})" if factor is None else f"_StridedShard({dimension}, split_factor={factor})"
    if placement.is_partial():
        return f"Partial({getattr(placement, 'reduce_op', 'sum')!r})"
    return "Replicate()"


def is_sum(placement: Placement) -> bool:
    """Return whether each rank has a term of a sum; of a mean or a maximum, each may have the whole."""
    return placement.is_partial() and getattr(placement, "reduce_op", "sum") == "sum"


def claim_of(key: str, value: DTensor) -> Claim | None:
    """Return what a DTensor claims; None if this rank is not of its mesh."""
    mesh = value.device_mesh
    if mesh.get_coordinate() is None:
        return None
    names = tuple(mesh.mesh_dim_names or ())
    ranks = tuple(mesh.mesh.reshape(-1).tolist())
    # That of an embedding has a mask of each rank's own.
    placements = tuple(Partial(each.reduce_op) if isinstance(each, Partial) else each for each in value.placements)
    return Claim(key, tuple(mesh.mesh.shape), ranks, names, placements, tuple(value.shape))


def claims_of(modules: Iterable[nn.Module]) -> tuple[Claim, ...]:
    """Return what this rank's parameters claim."""
    named = ((key, each) for key, each in parameters(modules) if isinstance(each, DTensor))
    return tuple(found for key, each in named if (found := claim_of(key, each)) is not None)
