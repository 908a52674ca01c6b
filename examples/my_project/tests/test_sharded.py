"""A sharded layer gives the same results as the whole layer, even if shards are uneven or empty."""

import pytest
import torch
from my_project.sharded import ShardedLinear, rows_of


@pytest.fixture
def batch():
    return torch.rand(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


@pytest.mark.world([1, 3, 8])
def test_output_is_that_of_the_whole_layer(process_group, world, whole, batch):
    output = ShardedLinear(whole)(batch)
    torch.testing.assert_close(output, whole(batch))
    world.all_agree(output.detach())


@pytest.mark.world([1, 3, 8])
def test_gradients_are_those_of_the_sum_of_all_losses(process_group, world, whole, batch):
    sharded = ShardedLinear(whole)
    scale = world.rank + 1.0
    (sharded(batch).square().sum() * scale).backward()

    (whole(batch).square().sum() * sum(range(1, world.size + 1))).backward()
    own_rows = rows_of(world.rank, world.size, whole.out_features)
    torch.testing.assert_close(sharded.weight.grad, whole.weight.grad[own_rows])
    torch.testing.assert_close(sharded.bias.grad, whole.bias.grad[own_rows])


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8])
def test_every_row_has_one_owner(size):
    """A single-process test in the same file."""
    owned = [row for rank in range(size) for row in range(7)[rows_of(rank, size, 7)]]
    assert owned == list(range(7))
