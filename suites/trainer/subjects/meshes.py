"""Meshes of two dimensions: a world makes each once, as a training script does, and keeps it for later cases."""

from __future__ import annotations

import json

import torch.distributed as dist
from everyrank import current_world
from everyrank.rank.context import current_rank
from everyrank.suites.arena.groups import is_in_own_group
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

_kept: dict[tuple[str, tuple[str, str]], DeviceMesh] = {}


def mesh_of_pairs(device: str, names: tuple[str, str]) -> DeviceMesh:
    """Return a mesh whose rows are pairs of ranks. All ranks must ask for it."""
    if is_in_own_group() or dist.get_world_size() != current_world().size:
        return _make(device, names)  # its default group ends with the case
    mesh = _kept.get((device, names))
    if mesh is None or not _is_in_step(mesh):
        with current_rank().allowing():
            mesh = _kept[device, names] = _make(device, names)
    return mesh


def _make(device: str, names: tuple[str, str]) -> DeviceMesh:
    return init_device_mesh(device, (dist.get_world_size() // 2, 2), mesh_dim_names=names)


def _is_in_step(mesh: DeviceMesh) -> bool:
    """Return whether all ranks of each group have done the same number of collectives there.

    If a case with a known deviation left a rank in the middle, the next collective would meet an older one.
    """
    counts = [
        (dist.get_process_group_ranks(group), group._get_sequence_number_for_group())  # type: ignore[attr-defined]
        for group in mesh.get_all_groups()
    ]
    texts = current_rank().gather("the groups of the kept mesh", json.dumps(counts))
    if texts is None:
        return False
    found: dict[tuple[int, ...], set[int]] = {}
    for text in texts:
        for ranks, count in json.loads(text):
            found.setdefault(tuple(ranks), set()).add(count)
    return all(len(counts) == 1 for counts in found.values())
