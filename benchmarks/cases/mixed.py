"""Tests of which every fiftieth fails, on a rank that its number decides."""

import os

import pytest
import torch
import torch.distributed as dist


@pytest.mark.world(4)
@pytest.mark.parametrize("number", range(int(os.environ["BENCHMARK_TESTS"])))
def test_mixed(process_group, world, number):
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == 4
    assert number % 50 or world.rank != number % 4, f"planted {number}"
