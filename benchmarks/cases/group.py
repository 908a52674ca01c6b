"""An all_reduce on the default group."""

import os

import pytest
import torch
import torch.distributed as dist


@pytest.mark.world(int(os.environ.get("BENCHMARK_SIZE", "4")))
@pytest.mark.parametrize("number", range(int(os.environ["BENCHMARK_TESTS"])))
def test_all_reduce(process_group, world, number):
    tensor = torch.full((3,), float(world.rank))
    dist.all_reduce(tensor)
    assert tensor.eq(world.size * (world.size - 1) / 2).all()
