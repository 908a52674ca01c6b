"""Many small tests in one pytest process: most in warm worlds, some in new processes, with two sizes of world."""

import os

import pytest
import torch
import torch.distributed as dist

TESTS = int(os.environ["BENCHMARK_TESTS"])
FRESH = 50  # every 50th test has new processes


def world(number: int) -> pytest.MarkDecorator:
    return pytest.mark.world(2 + number // FRESH % 2, fresh=number % FRESH == FRESH - 1)


@pytest.mark.parametrize("number", [pytest.param(number, marks=world(number)) for number in range(TESTS)])
def test_all_reduce(process_group, world, number, tmp_path):
    print("captured", number)
    tensor = torch.full((3,), float(world.rank))
    dist.all_reduce(tensor)
    assert tensor.eq(world.size * (world.size - 1) / 2).all()
