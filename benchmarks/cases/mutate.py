"""A test of 20 collectives, each of which is changed in each way."""

import pytest
import torch
import torch.distributed as dist


@pytest.mark.world(4)
def test_sums(process_group, world):
    for step in range(20):
        total = torch.full((8,), float(world.rank + step))
        dist.all_reduce(total)
        assert total.tolist() == [6 + 4 * step] * 8
