"""The groups of one case: what a rank does to its own group is done by what torch offers in public."""

from __future__ import annotations

import socket
import warnings
from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from everyrank.suites.arena.groups import Group, own_group


@pytest.fixture
def group() -> Iterator[dist.ProcessGroup]:
    """A group of gloo with one rank, which is not the default group."""
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield dist.new_group([0], timeout=timedelta(seconds=10))
    dist.destroy_process_group()


def test_operations_end_soon_and_torch_warns_of_nothing(group: dist.ProcessGroup) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Group({}, {dist.group.WORLD}).shorten_patience()
    backend = group._get_backend(torch.device("cpu"))
    assert backend.options._timeout == timedelta(milliseconds=300)


@pytest.mark.world(3)
def test_a_rank_that_is_in_fewer_groups_names_the_next_as_the_others_do(process_group: object) -> None:
    with own_group(2):
        if dist.get_rank() < 2:
            made = dist.new_group([0, 1])
            dist.all_reduce(torch.ones(1), group=made)  # a group that is left while it connects fails on another rank
            dist.destroy_process_group(made)
    with own_group():
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total == 3


@pytest.mark.world(2)
def test_a_pair_of_sockets_between_threads_outlives_the_group(process_group: object) -> None:
    with own_group():
        dist.all_reduce(torch.ones(1))
        writing, reading = socket.socketpair()  # as tokio makes one for all runtimes of a process
    with writing, reading:
        writing.sendall(b"still there")
        assert reading.recv(99) == b"still there"
