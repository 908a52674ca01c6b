"""The first line about a world that missed its deadline names the cause, also where stacks alone do not show it."""

from __future__ import annotations

import pytest

from tests.inner import Inner, Project

SOURCE = """
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
