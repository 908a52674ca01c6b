"""Tests that need GPUs. Under -n auto no two of them get the same GPU; without GPUs they skip, with what is missing.

pytest -n auto                      # on any machine
pytest -n auto --require-gpus=2     # on one that must have two: what would skip fails
"""

import pytest
import torch
import torch.distributed as dist


@pytest.mark.world(2, gpus=2)
def test_a_sum_over_nccl(process_group, device):
    total = torch.ones(1000, device=device)
    dist.all_reduce(total)
    assert dist.get_backend() == "nccl"
    assert total.unique().tolist() == [2.0]


@pytest.mark.world(2, gpus=0.5)
def test_two_ranks_share_half_a_gpu(process_group, device):
    total = torch.full((1000,), float(dist.get_rank()), device=device)
    dist.all_reduce(total)
    assert total.unique().tolist() == [1.0]


@pytest.mark.world(2, gpus=2, gpu_memory="20GB", p2p=True)
def test_gradients_of_a_model_that_is_sharded(process_group, device):
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = fully_shard(torch.nn.Linear(512, 512, device=device))
    model(torch.ones(1, 512, device=device)).sum().backward()
    assert model.weight.grad.full_tensor().unique().tolist() == [1.0]
