"""Where each parameter is over the axes of a mesh, as DTensor says it, from what ranks were seen to hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from everyrank.parity.report.layout import Block
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Placement, Replicate, Shard

#: What a rank holds of each parameter; None where its blocks are too many.
HeldBlocks = Mapping[str, tuple[Block, ...] | None]


def placements(held: Sequence[HeldBlocks], mesh: DeviceMesh | None) -> dict[str, tuple[Placement | None, ...]]:
    """Return the placements of each parameter over each axis, without a mesh over all ranks.

    None stands for what DTensor has no word for: parts that are cut in another way, or that some ranks do not have.
    """
    axes = _groups(mesh) if mesh is not None else [[[*range(len(held))]]]
    names = dict.fromkeys(name for each in held for name in each)
    return {name: tuple(_along(held, name, groups) for groups in axes) for name in names}


def _groups(mesh: DeviceMesh) -> list[list[list[int]]]:
    """Return the ranks along each axis."""
    return [mesh.mesh.movedim(axis, -1).reshape(-1, mesh.mesh.shape[axis]).tolist() for axis in range(mesh.mesh.ndim)]


def _along(held: Sequence[HeldBlocks], name: str, groups: Sequence[Sequence[int]]) -> Placement | None:
    """Return the placement that the ranks of each group show, if it is one."""
    found = [_of_group([held[rank].get(name) for rank in group]) for group in groups if _has(held, name, group)]
    return found[0] if found and all(each == found[0] for each in found) else None


def _has(held: Sequence[HeldBlocks], name: str, group: Sequence[int]) -> bool:
    return any(name in held[rank] for rank in group)


def _of_group(blocks: Sequence[tuple[Block, ...] | None]) -> Placement | None:
    known = [each for each in blocks if each is not None]
    if len(known) < len(blocks):
        return None
    if all(each == known[0] for each in known):
        return Replicate()
    if any(len(each) != 1 for each in known):
        return None
    parts = [each[0] for each in known]
    cut = [axis for axis in range(len(parts[0])) if any(part[axis] != parts[0][axis] for part in parts)]
    if len(cut) != 1 or any(len(part[cut[0]]) != 1 for part in parts):
        return None
    edges = [edge for part in parts for edge in part[cut[0]][0]]
    return Shard(cut[0]) if edges == sorted(edges) else None
