"""The first line about a world that missed its deadline names the cause, also where stacks alone do not show it."""

from __future__ import annotations

import re

import pytest

from tests.inner import Inner, Project

SOURCE = """
import subprocess
import threading

import pytest
import torch
import torch.distributed as dist

late = pytest.mark.world(2, timeout=4)


@late
def test_waits_in_finally(process_group, world):
    try:
        if world.rank == 1:
            raise ValueError("bad batch")  # raises
        dist.all_reduce(torch.ones(1))  # reduces
    finally:
        world.barrier()  # in finally


@late
def test_all_wait_in_except(process_group, world):
    try:
        raise ValueError("bad batch")  # all raise
    except ValueError:
        threading.Event().wait()  # all wait


class Slow(torch.utils.data.Dataset):
    def __init__(self, slow):
        self.slow = slow

    def __len__(self):
        return 4

    def __getitem__(self, index):
        if index == self.slow:
            threading.Event().wait()  # in the dataset
        return index


@late
def test_waits_for_a_batch(process_group, world):
    loader = torch.utils.data.DataLoader(Slow(2), num_workers=1)
    for number, batch in enumerate(loader):  # takes batches
        dist.all_reduce(batch)


@late
def test_loads_while_all_wait(process_group, world):
    if world.rank == 0:
        batches = iter(torch.utils.data.DataLoader(Slow(0), num_workers=1))
        dist.barrier()  # waits beside


@late
def test_has_a_child(process_group, world):
    if world.rank == 1:
        with subprocess.Popen(["sleep", "1000"]):
            dist.barrier()  # waits with a child
"""


def line(comment: str) -> int:
    return next(number for number, text in enumerate(SOURCE.splitlines(), 1) if text.endswith(f"  # {comment}"))


@pytest.fixture(scope="module")
def late(module_project: Project) -> Inner:
    (module_project.folder / "test_inner.py").write_text(SOURCE)
    return module_project.run()


def test_the_exception_that_a_rank_is_handling(late: Inner) -> None:
    assert late["test_waits_in_finally"].text.startswith(
        f"rank 1 waits in barrier at test_inner.py:{line('in finally')}, while handling ValueError: bad batch "
        f"(:{line('raises')}); rank 0 waits in all_reduce at test_inner.py:{line('reduces')} (deadline 4 s)\n"
    )


def test_an_exception_that_all_ranks_are_handling_blames_none(late: Inner) -> None:
    assert late["test_all_wait_in_except"].text.startswith(
        f"ranks 0,1 wait in wait at test_inner.py:{line('all wait')}, while handling ValueError: bad batch "
        f"(:{line('all raise')}) (deadline 4 s)\n"
    )


def test_a_rank_that_waits_for_a_batch_and_what_its_worker_does(late: Inner) -> None:
    text = late["test_waits_for_a_batch"].text
    assert text.startswith(
        f"ranks 0,1 wait for the next batch of loader at test_inner.py:{line('takes batches')}, "
        f"whose worker is waiting in wait at test_inner.py:{line('in the dataset')} (deadline 4 s)\n"
    )
    worker = r"  DataLoader worker \d+ of rank 1 is waiting in wait at .*\n    wait at thr.*\n    wait at thr.*\n"
    assert re.search(rf"{worker}    __getitem__ at test_inner.py:{line('in the dataset')}\n", text)
    assert "not ended before" not in text


@pytest.mark.parametrize(
    ("test", "rank", "child", "comment"),
    [
        ("test_loads_while_all_wait", 0, "DataLoader worker", "waits beside"),
        ("test_has_a_child", 1, "process sleep", "waits with a child"),
    ],
)
def test_a_child_process_that_may_act_is_named_as_the_reason_why_a_world_went_on(
    late: Inner, test: str, rank: int, child: str, comment: str
) -> None:
    first, _, third, *_ = late[test].text.splitlines()
    waits = f"rank {rank} waits in barrier at test_inner.py:{line(comment)}"
    assert first == f"rank {1 - rank} ended its test; {waits} (deadline 4 s)"
    assert re.fullmatch(
        rf"It was not ended before, since a child process may let a rank go on: rank {rank} has {child} \d+", third
    )
    assert re.search(rf"^  {child} \d+ of rank {rank} is ", late[test].text, re.M)
