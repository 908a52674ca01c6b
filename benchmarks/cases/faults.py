"""A test of 20 collectives on 4 ranks, of which one dies at each of its collectives in turn."""

import pytest
import torch
import torch.distributed as dist


@pytest.mark.world(4)
@pytest.mark.faults("rank 1 dies at each collective")
def test_20_collectives(process_group, world):
    try:
        for _ in range(20):
            dist.all_reduce(torch.ones(3))
    except RuntimeError:
        assert world.faults
    else:
        assert not world.faults
