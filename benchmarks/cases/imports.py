"""Uses parts of torch with late imports: an optimizer and DDP import its compiler, assert_close imports sympy."""

import os

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

if os.environ.get("BENCHMARK_AT_TOP"):
    import sympy  # noqa: F401
    import torch._dynamo

world = pytest.mark.world(4)
again = pytest.mark.parametrize("number", range(int(os.environ["BENCHMARK_TESTS"])))


@world
@again
def test_optimizer(process_group, number):
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    weight.sum().backward()
    dist.all_reduce(weight.grad)
    optimizer.step()
    assert weight.lt(1).all()


@world
@again
def test_ddp(process_group, number):
    model = DistributedDataParallel(torch.nn.Linear(3, 1))
    model(torch.ones(2, 3)).sum().backward()
    assert model.module.bias.grad.eq(2).all()


@world
@again
def test_assert_close(process_group, world, number):
    tensor = torch.full((3,), float(world.rank))
    dist.all_reduce(tensor)
    torch.testing.assert_close(tensor, torch.full((3,), 6.0))
