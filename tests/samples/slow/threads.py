"""Threads that complete what main threads wait for."""

from __future__ import annotations

import _thread
import asyncio
import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist
from slow import LONG, of_2, reduce_on_all, vector


@of_2
@pytest.mark.parametrize("raw", [True, False])
def test_a_thread_sends(world, process_group, raw):
    def send_later() -> None:
        time.sleep(LONG)
        dist.send(vector(), 1)

    if world.rank == 1:
        dist.recv(vector(), 0)
    elif raw:
        _thread.start_new_thread(send_later, ())
    else:
        threading.Thread(target=send_later).start()
    reduce_on_all()


@of_2
def test_a_thread_of_a_rank_that_ended_answers(world, process_group):
    def answer() -> None:
        time.sleep(LONG)
        dist.send(vector(), dst=0)

    if world.rank == 1:
        threading.Thread(target=answer, daemon=True).start()
        return
    dist.recv(vector(), src=1)


@of_2
def test_a_thread_that_wakes_by_its_own_clock_answers(world, process_group):
    """It waits for an event that nobody sets, with a limit."""

    def answer() -> None:
        threading.Event().wait(LONG)
        dist.send(vector(), dst=0)

    if world.rank == 1:
        threading.Thread(target=answer, daemon=True).start()
        return
    dist.recv(vector(), src=1)


@of_2
def test_a_worker_of_a_pool_answers(world, process_group):
    """One worker sleeps in C, below no frame of its own; another passes it on."""
    with ThreadPoolExecutor(2) as pool:
        if world.rank == 1:
            slept = pool.submit(time.sleep, LONG)
            pool.submit(lambda: (slept.result(), dist.send(vector(), dst=0)))
        else:
            dist.recv(vector(), src=1)
        reduce_on_all()


@of_2
def test_a_thread_is_woken_by_another_thread(world, process_group):
    items: queue.Queue[int] = queue.Queue()

    def pass_on() -> None:
        items.get()
        dist.send(vector(), dst=0)

    if world.rank == 1:
        threading.Thread(target=pass_on).start()
        threading.Timer(LONG, items.put, [1]).start()
    else:
        dist.recv(vector(), src=1)
    reduce_on_all()


@of_2
def test_a_thread_works_in_a_group_of_its_own(world, process_group):
    group, total = dist.new_group([0, 1]), vector()

    def work() -> None:
        if world.rank == 1:
            time.sleep(LONG)
        dist.all_reduce(total, group=group)

    thread = threading.Thread(target=work)
    thread.start()
    if world.rank == 0:
        time.sleep(LONG / 2)
    reduce_on_all()
    thread.join()
    assert total[0] == 2


@of_2
def test_threads_complete_what_main_threads_wait_for_in_crossed_groups(world, process_group):
    group = dist.new_group([0, 1])
    first, second = (None, group) if world.rank == 0 else (group, None)

    def work() -> None:
        time.sleep(LONG)
        reduce_on_all(second)

    thread = threading.Thread(target=work)
    thread.start()
    reduce_on_all(first)
    thread.join()


@of_2
def test_an_event_loop_waits_in_a_thread(world, process_group):
    async def main() -> None:
        await asyncio.sleep(LONG if world.rank == 0 else 0)
        await asyncio.get_running_loop().run_in_executor(None, reduce_on_all)

    asyncio.run(main())
    reduce_on_all()


@of_2
def test_a_future_is_completed_by_a_thread(world, process_group):
    if world.rank == 0:
        future: Any = torch.futures.Future()
        threading.Timer(LONG, future.set_result, [1]).start()
        assert future.wait() == 1
    reduce_on_all()
