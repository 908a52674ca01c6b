"""Messages from one rank to another."""

from __future__ import annotations

import time
from typing import Any

import torch.distributed as dist
from slow import LONG, of_2, of_3, reduce_on_all, vector


@of_2
def test_messages_are_received_out_of_order(world, process_group):
    first, second = vector(1), vector(1)
    if world.rank == 0:
        begun = dist.isend(vector(1) * 2, 1, tag=2)  # gloo's send() waits for the receiver
        time.sleep(LONG)
        dist.send(vector(1) * 1, 1, tag=1)
        begun.wait()
    else:
        dist.recv(first, 0, tag=1)
        dist.recv(second, 0, tag=2)
        assert (first[0], second[0]) == (1, 2)


@of_3
def test_a_batch_of_messages_goes_around(world, process_group):
    came = vector(1000)
    if world.rank == 2:
        time.sleep(LONG)
    around = [
        dist.P2POp(dist.isend, vector(1000) * world.rank, (world.rank + 1) % 3),
        dist.P2POp(dist.irecv, came, (world.rank - 1) % 3),
    ]
    for work in dist.batch_isend_irecv(around):
        work.wait()
    assert came[0] == (world.rank - 1) % 3


@of_3
def test_receives_from_anyone(world, process_group):
    if world.rank == 0:
        dist.recv(vector())
        dist.recv(vector())
    else:
        time.sleep(LONG / 2 * world.rank)
        dist.send(vector(), 0)


@of_2
def test_a_large_message_waits_for_its_receiver(world, process_group):
    if world.rank == 0:
        dist.send(vector(6_000_000), 1)
    else:
        time.sleep(LONG)
        dist.recv(vector(6_000_000), 0)


@of_2
def test_a_message_is_on_its_way_while_both_wait_elsewhere(world, process_group):
    if world.rank == 0:
        work = dist.isend(vector(), 1)
        time.sleep(LONG)
        reduce_on_all()
        work.wait()
    else:
        reduce_on_all()
        dist.recv(vector(), 0)


sent: list[Any] = []


@of_2
def test_what_a_rank_that_ended_has_sent_comes(world, process_group):
    if world.rank == 1:
        sent.append(dist.isend(vector(), dst=0))  # torch takes back what nobody holds
        return
    time.sleep(LONG)
    dist.recv(vector(), src=1)


@of_2
def test_what_a_rank_that_ended_has_begun_goes_on(world, process_group):
    if world.rank == 1:
        dist.all_reduce(vector(), async_op=True)
        return
    time.sleep(LONG)
    dist.all_reduce(vector())
