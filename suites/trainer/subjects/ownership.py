"""What a rank owns, as the law ``large-world`` asks it: whole parameters, and those that torch cuts as DTensors."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

#: The offsets and sizes of the boxes that this rank owns, and how many ranks own each element.
Ownership = tuple[list[tuple[tuple[int, ...], tuple[int, ...]]], int]


def owned_parameters(named: Mapping[str, Any]) -> dict[str, Ownership]:
    """Return what this rank owns: its part of each DTensor, and the whole of each other parameter."""
    return {
        name: part_of(value) if isinstance(value, DTensor) else whole(value, dist.get_world_size())
        for name, value in named.items()
    }


def whole(value: torch.Tensor, copies: int) -> Ownership:
    return [((0,) * value.dim(), tuple(value.shape))], copies


def part_of(value: DTensor) -> Ownership:
    mesh = value.device_mesh
    sizes, offsets = compute_local_shape_and_global_offset(value.shape, mesh, value.placements)
    copies = prod(mesh.size(dim) for dim, placement in enumerate(value.placements) if placement.is_replicate())
    return [(offsets, sizes)], copies
