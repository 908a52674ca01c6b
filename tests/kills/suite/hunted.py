"""The tests whose processes are killed. What each comes to when nobody is killed stands in ``truth.py``."""

from __future__ import annotations

import subprocess
import time

import pytest
import torch
import torch.distributed as dist
import torch.distributed.rpc as rpc

#: Each test is open to be killed for this many seconds at least.
OPEN = 0.08


def reduced(size: int) -> None:
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == size


@pytest.mark.world(2)
@pytest.mark.parametrize("number", range(4))
def test_group(process_group, middle, number):
    reduced(2)
    middle()
    time.sleep(OPEN)
    reduced(2)


@pytest.mark.world(2)
def test_fails_on_one_rank(process_group, world, middle):
    middle()
    time.sleep(OPEN)
    assert world.rank == 0, "planted on one rank"
    reduced(2)


@pytest.mark.world(3)
def test_barrier(world, middle):
    world.barrier()
    middle()
    time.sleep(OPEN)
    world.barrier()


@pytest.mark.world(2)
def test_waits_for_a_peer(process_group, world, middle):
    middle()
    if world.rank == 0:
        reduced(2)


@pytest.mark.world(2)
def test_skips(world, middle):
    middle()
    time.sleep(OPEN)
    pytest.skip("planted skip")


@pytest.mark.world(2)
@pytest.mark.xfail(reason="planted", strict=True)
def test_xfails(process_group, middle):
    middle()
    time.sleep(OPEN)
    raise ValueError("planted, and expected")


@pytest.mark.world(2, fresh=True)
@pytest.mark.parametrize("number", range(2))
def test_fresh(process_group, middle, number):
    reduced(2)
    middle()
    time.sleep(OPEN)


@pytest.mark.world(2)
def test_has_a_child(world, middle):
    child = subprocess.Popen(["sleep", "0.2"], start_new_session=True)
    middle()
    assert child.wait() == 0


@pytest.mark.world(3)
def test_own_groups(process_group, middle):
    groups = [dist.new_group([0, 1]), dist.new_group([1, 2])]
    middle()
    time.sleep(OPEN)
    for group in groups:
        if dist.get_rank() in dist.get_process_group_ranks(group):
            dist.barrier(group)


@pytest.mark.world(2)
def test_rpc(rpc_agent, world, middle):
    middle()
    time.sleep(OPEN)
    assert rpc.rpc_sync(rpc_agent.names[1 - world.rank], torch.add, args=(torch.ones(1), 1)).item() == 2


@pytest.mark.world(2)
def test_raises_while_a_peer_waits(process_group, world, middle):
    middle()
    if world.rank == 1:
        time.sleep(OPEN)
        raise RuntimeError("planted error")
    reduced(2)


def test_in_one_process():
    time.sleep(OPEN)


@pytest.mark.world(2)
def test_some_skip(world, middle):
    middle()
    if world.rank == 1:
        pytest.skip("planted skip")


@pytest.mark.world(2)
@pytest.mark.parametrize("number", range(4))
def test_again(process_group, middle, number):
    middle()
    time.sleep(OPEN)
    reduced(2)


def test_fails_in_one_process():
    raise AssertionError("planted in one process")


@pytest.mark.world(2)
def test_last(process_group, middle):
    reduced(2)
    middle()
