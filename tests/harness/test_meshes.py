"""DTensor keeps results with their meshes; after a test that has made groups, a rank lets it forget them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from everyrank.rank.groups import Groups
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard


@pytest.fixture
def clean_groups(process_group: object) -> Iterator[None]:
    before = set(dist.distributed_c10d._world.pg_map)
    yield
    for group in set(dist.distributed_c10d._world.pg_map) - before:
        dist.destroy_process_group(group)


def _mesh() -> DeviceMesh:
    return init_device_mesh("cpu", (1, 1), mesh_dim_names=("one", "two"))


def _mesh_of_a_result(mesh: DeviceMesh) -> DeviceMesh:
    tensor = DTensor.from_local(torch.ones(2, 2), mesh, [Shard(0), Shard(1)])
    result: DeviceMesh = (tensor * 2).device_mesh
    return result


@pytest.mark.world(1)
def test_a_result_has_a_mesh_of_its_own_after_groups_were_made(clean_groups: None) -> None:
    groups = Groups()
    first = _mesh()
    groups.forget_meshes()
    assert _mesh_of_a_result(first) is first
    second = _mesh()
    assert _mesh_of_a_result(second) is first, "this torch needs no forgetting"
    dist.new_group([0])
    groups.forget_meshes()
    assert _mesh_of_a_result(second) is second


@pytest.mark.world(1)
def test_results_are_kept_if_no_groups_were_made(clean_groups: None) -> None:
    groups = Groups()
    first, second = _mesh(), _mesh()
    groups.forget_meshes()
    assert _mesh_of_a_result(first) is first
    groups.forget_meshes()
    assert _mesh_of_a_result(second) is first


@pytest.mark.world(1, fresh=True)
def test_no_mesh_outlives_the_default_group(world: object) -> None:
    def use() -> weakref.ref[DeviceMesh]:
        mesh = _mesh()
        shards = DTensor.from_local(torch.ones(2, 2), mesh, [Shard(0), Shard(1)])
        shards.redistribute(placements=[Replicate(), Replicate()]).full_tensor()
        return weakref.ref(mesh)

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    mesh = use()
    dist.destroy_process_group()
    Groups().forget_meshes()
    gc.collect()
    assert mesh() is None  # otherwise it holds the group, whose sockets stay open
