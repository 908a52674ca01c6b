"""A rank that is late, while the others wait for it."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import threading
import time
from typing import Any

import torch.distributed as dist
from slow import LONG, later, of_2, of_3, on_rank_0, vector


def sleeps_in_python(_):
    time.sleep(LONG)


def sleeps_in_c(_):
    ctypes.CDLL(None).usleep(int(LONG * 1e6))


def sleeps_in_c_with_the_gil(_):
    ctypes.PyDLL(None).usleep(int(LONG * 1e6))


def computes_in_c_with_the_gil(_):
    until = time.monotonic() + LONG
    while time.monotonic() < until:
        pow(3, 300007)


def collects_garbage(_):
    made = [[number] for number in range(300_000)]
    for _ in range(3):
        gc.collect()
    del made


def writes_to_a_disk(folder):
    until = time.monotonic() + LONG
    with open(folder / "file", "wb") as file:
        while time.monotonic() < until:
            file.write(bytes(1 << 16))
            file.flush()
            os.fsync(file.fileno())
            file.seek(0)


test_is_late = on_rank_0(
    sleeps_in_python,
    sleeps_in_c,
    sleeps_in_c_with_the_gil,
    computes_in_c_with_the_gil,
    collects_garbage,
    writes_to_a_disk,
)


@of_2
def test_sleeps_on_the_line_of_a_wait(world, process_group):
    total = vector()
    if world.rank == 0:
        work = dist.all_reduce(total, async_op=True)
        # fmt: off
        time.sleep(LONG); dist.send(vector(), 1); work.wait()  # noqa: E702
    # fmt: on
    else:
        dist.recv(vector(), 0)
        dist.all_reduce(total)
    assert total[0] == 2


@of_2
def test_sleeps_in_the_expression_of_a_wait(world, process_group):
    total = vector()
    if world.rank == 0:
        work = dist.all_reduce(total, async_op=True)
        (time.sleep(LONG), dist.send(vector(), 1), work.wait())
    else:
        dist.recv(vector(), 0)
        dist.all_reduce(total)
    assert total[0] == 2


@of_2
def test_waits_for_a_lock_on_the_line_of_a_wait(world, process_group):
    """The lock is released by a signal's handler, and the signal comes from another process."""
    total, lock = vector(), threading.Lock()
    if world.rank == 0:
        signal.signal(signal.SIGUSR2, lambda *_: lock.release())
        later(f"kill -USR2 {os.getpid()}")
        lock.acquire()
        work = dist.all_reduce(total, async_op=True)
        # fmt: off
        lock.acquire(); dist.send(vector(), 1); work.wait()  # noqa: E702
        # fmt: on
        signal.signal(signal.SIGUSR2, signal.SIG_DFL)
    else:
        dist.recv(vector(), 0)
        dist.all_reduce(total)


@of_3
def test_is_late_between_objects(world, process_group):
    if world.rank == 2:
        time.sleep(LONG)
    gathered: list[Any] = [None] * 3
    dist.all_gather_object(gathered, world.rank)
    sent = [gathered if world.rank == 0 else None]
    dist.broadcast_object_list(sent, 0)
    if world.rank == 1:
        time.sleep(LONG)
    mine = [None]
    dist.scatter_object_list(mine, gathered if world.rank == 0 else None, 0)
    assert mine == [world.rank]
