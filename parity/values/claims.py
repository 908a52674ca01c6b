"""What a rank's DTensors say of where their elements are: the dye shows whether it is so."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from everyrank.parity.values.names import parameters
from torch import nn
from torch.distributed.tensor import DTensor


@dataclass(frozen=True)
class Claim:
    """The placement of a parameter over one axis of its mesh."""

    key: str
    """The parameter of this rank."""
    axis: str
    """The name of the axis; "ranks" if it has none."""
    ranks: tuple[int, ...]
    """The ranks along the axis, of which this is one."""
    whole: bool
    """Whether each of them has all that the others have: Replicate()."""


def claims_of(modules: Iterable[nn.Module]) -> tuple[Claim, ...]:
    """Return what this rank's parameters claim."""
    found = []
    for key, parameter in parameters(modules):
        if isinstance(parameter, DTensor) and (here := parameter.device_mesh.get_coordinate()) is not None:
            mesh = parameter.device_mesh
            for axis, placement in enumerate(parameter.placements):
                along = mesh.mesh[tuple(slice(None) if each == axis else index for each, index in enumerate(here))]
                name = mesh.mesh_dim_names[axis] if mesh.mesh_dim_names else "ranks"
                found.append(Claim(key, name, tuple(along.tolist()), placement.is_replicate()))
    return tuple(found)
