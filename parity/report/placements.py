"""Where each parameter is over the axes of a mesh, as DTensor says it, from what ranks were seen to hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from everyrank.parity.report.maps import Layout, joined, of_parameters
from everyrank.parity.values.dye import Holdings
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Placement, Replicate, Shard


def placements(
    holdings: Sequence[Holdings], sizes: Mapping[str, torch.Size], mesh: DeviceMesh | None
) -> dict[str, tuple[Placement | None, ...]]:
    """Return the placements of each parameter over each axis, without a mesh over all ranks.

    None stands for what DTensor has no word for: parts that are cut in another way, or that some ranks do not have.
    """
    axes = _groups(mesh) if mesh is not None else [[[*range(len(holdings))]]]
    held = [joined(of_parameters(each, sizes)) for each in holdings]
    return {name: tuple(_along([each.get(name) for each in held], groups) for groups in axes) for name in sizes}


def _groups(mesh: DeviceMesh) -> list[list[list[int]]]:
    """Return the ranks along each axis."""
    return [mesh.mesh.movedim(axis, -1).reshape(-1, mesh.mesh.shape[axis]).tolist() for axis in range(mesh.mesh.ndim)]


def _along(held: Sequence[Layout | None], groups: Sequence[Sequence[int]]) -> Placement | None:
    """Return the placement that the ranks of each group show, if it is one; a group that has nothing shows none."""
    found = [_of_group([held[rank] for rank in group]) for group in groups if any(held[rank] for rank in group)]
    return found[0] if found and all(each == found[0] for each in found) else None


def _of_group(layouts: Sequence[Layout | None]) -> Placement | None:
    blocks = [each.blocks for each in layouts if each is not None and each.blocks is not None]
    if len(blocks) < len(layouts):
        return None
    if all(each == blocks[0] for each in blocks):
        return Replicate()
    if any(len(each) != 1 for each in blocks):
        return None
    parts = [each[0] for each in blocks]
    cut = [axis for axis in range(len(parts[0])) if any(part[axis] != parts[0][axis] for part in parts)]
    if len(cut) != 1 or any(len(part[cut[0]]) != 1 for part in parts):
        return None
    edges = [edge for part in parts for edge in part[cut[0]][0]]
    return Shard(cut[0]) if edges == sorted(edges) else None
