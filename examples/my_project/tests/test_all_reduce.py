"""Collectives on the number of ranks that the mark gives."""

import pytest
import torch
import torch.distributed as dist


@pytest.mark.world(4)
def test_all_reduce(process_group):
    t = torch.full((3,), float(dist.get_rank()))
    dist.all_reduce(t)
    assert t.eq(6).all()


@pytest.mark.world([1, 2, 3])
def test_mean_of_all_ranks(process_group, world):
    numbers = torch.rand(5)  # every rank has its own seed
    mean = numbers.clone()
    dist.all_reduce(mean)
    mean /= world.size
    world.all_agree(mean)
    gathered = [torch.empty(5) for _ in range(world.size)]
    dist.all_gather(gathered, numbers)
    torch.testing.assert_close(mean, torch.stack(gathered).mean(0))
