"""The groups of ranks have the names that a user gave to the dimensions of a mesh."""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed as dist
from everyrank.parity.setup.ranks import groups_of_torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module


@pytest.mark.world(2)
def test_a_dimension_over_all_ranks_has_its_name_from_the_mesh_of_a_parameter(process_group: Any) -> None:
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    cut = parallelize_module(nn.Linear(4, 4), mesh, ColwiseParallel())
    assert groups_of_torch([cut])["tp"] == {(0, 1)}
    assert (0, 1) not in {ranks for groups in groups_of_torch([nn.Linear(4, 4)]).values() for ranks in groups}


@pytest.mark.world(4)
def test_dimensions_of_a_grid_have_their_names(process_group: Any) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    rank = mesh.get_rank()
    found = groups_of_torch([])
    assert found["tp"] == {(rank - rank % 2, rank - rank % 2 + 1)}
    assert found["dp"] == {(rank % 2, rank % 2 + 2)}
    dist.barrier()  # a rank that is still connecting fails if another has destroyed the group already
    for name in ("dp", "tp"):
        dist.destroy_process_group(mesh.get_group(name))
