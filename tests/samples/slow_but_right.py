"""Tests that are slow, and right: none may be taken for a deadlock. ``test_slow_but_right.py`` runs them.

``LONG`` is more than the time for which a world must stand still before its ranks are asked. Sleeping here is what a
slow rank does.
"""

from __future__ import annotations

import _thread
import asyncio
import ctypes
import fcntl
import gc
import multiprocessing
import os
import pty
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

LONG = 2.5
of_2, of_3, of_4 = (pytest.mark.world(size, timeout=90) for size in (2, 3, 4))


def vector(size: int = 2) -> torch.Tensor:
    return torch.ones(size)


def reduce_on_all(group: Any = None) -> None:
    total = vector()
    dist.all_reduce(total, group=group)
    assert total[0] == dist.get_world_size(group)


def later(command: str) -> None:
    """Run a shell command after a while in a process that is no child of this rank."""
    subprocess.run(["/bin/sh", "-c", f"(sleep {LONG}; {command}) >/dev/null 2>&1 &"], check=True)


# --- a rank that is late --------------------------------------------------------------------------------------


@of_3
def test_sleeps_in_python(world, process_group):
    if world.rank == 1:
        time.sleep(LONG)
    reduce_on_all()


@of_2
@pytest.mark.parametrize("load", [ctypes.CDLL, ctypes.PyDLL])  # PyDLL holds the GIL
def test_sleeps_in_c(world, process_group, load):
    if world.rank == 1:
        load(None).usleep(int(LONG * 1e6))
    reduce_on_all()


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


@of_2
def test_computes_in_c_with_the_gil(world, process_group):
    if world.rank == 0:
        until = time.monotonic() + LONG
        while time.monotonic() < until:
            pow(3, 300007)
    reduce_on_all()


@of_2
def test_collects_garbage(world, process_group):
    if world.rank == 0:
        made = [[number] for number in range(300_000)]
        for _ in range(3):
            gc.collect()
        del made
    reduce_on_all()


@of_2
def test_writes_to_a_disk(world, process_group, tmp_path):
    if world.rank == 0:
        until = time.monotonic() + LONG
        with open(tmp_path / "file", "wb") as file:
            while time.monotonic() < until:
                file.write(bytes(1 << 16))
                file.flush()
                os.fsync(file.fileno())
                file.seek(0)
    reduce_on_all()


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


# --- asynchronous collectives, groups ------------------------------------------------------------------------


@of_2
def test_waits_long_after_it_has_begun(world, process_group):
    total = vector()
    work = dist.all_reduce(total, async_op=True)
    if world.rank == 0:
        time.sleep(LONG)
    work.wait()
    reduce_on_all()


@of_2
def test_begins_several_at_once(world, process_group):
    totals = [vector() for _ in range(4)]
    if world.rank == 1:
        time.sleep(LONG)
    with dist._coalescing_manager(async_ops=True) as coalesced:
        for total in totals:
            dist.all_reduce(total)
    if world.rank == 0:
        time.sleep(LONG)
    coalesced.wait()
    assert all(total[0] == 2 for total in totals)


@of_4
def test_works_in_rows_and_columns(world, process_group):
    rows, columns = ([dist.new_group(ranks) for ranks in pairs] for pairs in (([0, 1], [2, 3]), ([0, 2], [1, 3])))
    total = vector()
    dist.all_reduce(total, group=rows[world.rank // 2])
    if world.rank == 3:
        time.sleep(LONG)
    dist.all_reduce(total, group=columns[world.rank % 2])
    assert total[0] == 4


@of_4
def test_works_in_a_mesh(world, process_group):
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    if world.rank == 2:
        time.sleep(LONG)
    total = vector()
    for name in "ab":
        dist.all_reduce(total, group=mesh.get_group(name))
    assert total[0] == 4


@of_2
def test_is_late_for_a_new_group(world, process_group):
    if world.rank == 1:
        time.sleep(LONG)
    reduce_on_all(dist.new_group([0, 1]))


@of_3
def test_others_meet_in_a_collective_while_one_waits_for_a_new_group(world, process_group):
    if world.rank == 2:
        time.sleep(LONG)
        group = dist.new_group([1, 2], use_local_synchronization=True)
    elif world.rank == 1:
        group = dist.new_group([1, 2], use_local_synchronization=True)
    if world.rank:
        reduce_on_all(group)
    reduce_on_all()


@of_3
def test_some_wait_in_a_subgroup_while_one_has_ended(world, process_group):
    group = dist.new_group([0, 1])
    if world.rank == 2:
        return
    if world.rank == 1:
        time.sleep(LONG)
    reduce_on_all(group)


@of_2
def test_a_functional_collective_waits_for_a_rank_that_is_late(world, process_group):
    import torch.distributed._functional_collectives as functional

    if world.rank == 1:
        time.sleep(LONG)
    assert functional.all_reduce(vector(), "sum", dist.group.WORLD).sum().item() == 4


@of_2
def test_a_wait_has_a_time_limit_that_is_not_reached(world, process_group):
    if world.rank == 1:
        time.sleep(LONG)
    dist.all_reduce(vector(), async_op=True).wait(timedelta(seconds=60))


@of_2
def test_a_group_has_a_time_limit_that_the_test_wants(world, process_group):
    dist.barrier()  # to open the group is under its limit too
    group = dist.new_group([0, 1], timeout=timedelta(seconds=LONG))
    if world.rank == 0:
        with pytest.raises(RuntimeError, match=r"(?i)timed out"):
            dist.all_reduce(vector(), group=group)
    else:
        time.sleep(LONG + 1)


@of_2
def test_a_monitored_barrier_waits(world, process_group):
    if world.rank == 1:
        time.sleep(LONG)
    dist.monitored_barrier(timeout=timedelta(seconds=60))


@of_2
def test_a_monitored_barrier_has_a_time_limit_that_the_test_wants(world, process_group):
    if world.rank == 0:
        with pytest.raises(RuntimeError, match=r"(?i)timed out|failed to pass|monitored"):
            dist.monitored_barrier(timeout=timedelta(seconds=LONG))


@of_2
def test_is_late_in_a_group_of_its_own(world):
    dist.init_process_group("gloo")
    if world.rank == 0:
        time.sleep(LONG)
    reduce_on_all()
    dist.destroy_process_group()


# --- messages ------------------------------------------------------------------------------------------------


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


# --- threads -------------------------------------------------------------------------------------------------


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


@of_2
def test_a_future_of_a_collective_waits_for_a_rank_that_is_late(world, process_group):
    if world.rank == 1:
        time.sleep(LONG)
    dist.all_reduce(vector(), async_op=True).get_future().wait()


# --- other processes -----------------------------------------------------------------------------------------


@of_2
@pytest.mark.parametrize("child", [True, False])
def test_a_process_sends_a_signal(world, process_group, child):
    if world.rank == 0:
        got: list[int] = []
        signal.signal(signal.SIGUSR2, lambda *_: got.append(1))
        command = f"kill -USR2 {os.getpid()}"
        if child:
            process = subprocess.Popen(["/bin/sh", "-c", f"sleep {LONG}; {command}"])
        else:
            later(command)
        while not got:
            signal.pause()
        if child:
            process.wait()
        signal.signal(signal.SIGUSR2, signal.SIG_DFL)
    reduce_on_all()


@of_2
def test_an_event_is_set_by_a_signal(world, process_group):
    if world.rank == 0:
        event = threading.Event()
        signal.signal(signal.SIGUSR2, lambda *_: event.set())
        later(f"kill -USR2 {os.getpid()}")
        event.wait()
        signal.signal(signal.SIGUSR2, signal.SIG_DFL)
    reduce_on_all()


@of_2
def test_an_alarm_wakes_it(world, process_group):
    if world.rank == 0:
        got: list[int] = []
        signal.signal(signal.SIGALRM, lambda *_: got.append(1))
        signal.setitimer(signal.ITIMER_REAL, LONG)
        while not got:
            signal.pause()
    reduce_on_all()


@of_2
def test_is_stopped_and_continued_from_outside(world, process_group):
    if world.rank == 0:
        later(f"kill -CONT {os.getpid()}")
        os.kill(os.getpid(), signal.SIGSTOP)
    reduce_on_all()


@of_2
def test_is_stopped_in_a_collective(world, process_group):
    if world.rank == 1:
        stop = f"sleep 1; kill -STOP {os.getpid()}; sleep {LONG}; kill -CONT {os.getpid()}"
        subprocess.run(["sh", "-c", f"({stop}) >/dev/null 2>&1 &"], check=True)
        time.sleep(2)
    reduce_on_all()


@of_2
def test_is_stopped_by_another_rank(world, process_group):
    pids: list[Any] = [None, None]
    dist.all_gather_object(pids, os.getpid())
    if world.rank == 0:
        time.sleep(0.3)
        os.kill(pids[1], signal.SIGSTOP)
        time.sleep(LONG)
        os.kill(pids[1], signal.SIGCONT)
    reduce_on_all()


@of_2
def test_another_process_connects(world, process_group):
    if world.rank == 0:
        with socket.create_server(("127.0.0.1", 0)) as server:
            connect = f"import socket; socket.create_connection(('127.0.0.1', {server.getsockname()[1]})).send(b'x')"
            later(f'{sys.executable} -c "{connect}"')
            connection, _ = server.accept()
            with connection:
                assert connection.recv(1) == b"x"
    reduce_on_all()


@of_2
def test_another_process_writes_to_a_fifo(world, process_group, tmp_path):
    if world.rank == 0:
        fifo = tmp_path / "fifo"
        os.mkfifo(fifo)
        later(f"echo x > {fifo}")
        assert fifo.read_text() == "x\n"
    reduce_on_all()


@of_2
def test_another_process_holds_a_lock(world, process_group, tmp_path):
    if world.rank == 0:
        path = tmp_path / "lock"
        path.touch()
        holds = subprocess.Popen(
            ["/bin/sh", "-c", f"(flock {path} sh -c 'echo held; exec >&-; sleep {LONG}') 2>/dev/null &"],
            stdout=subprocess.PIPE,
        )
        assert holds.stdout is not None
        assert holds.stdout.read() == b"held\n"
        holds.wait()
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX)
    reduce_on_all()


@of_2
def test_another_process_posts_a_semaphore(world, process_group):
    if world.rank == 0:
        semaphore = multiprocessing.get_context("fork").Semaphore(0)
        if os.fork() == 0:
            if os.fork() == 0:
                time.sleep(LONG)
                semaphore.release()
            os._exit(0)
        os.wait()
        semaphore.acquire()
    reduce_on_all()


@of_2
def test_a_person_answers_late_at_a_terminal(world, process_group):
    if world.rank == 0:
        master, terminal = pty.openpty()
        threading.Timer(LONG, os.write, [master, b"c\n"]).start()
        assert os.read(terminal, 10)
        os.close(master)
        os.close(terminal)
    reduce_on_all()


def put_later(items: Any) -> None:
    time.sleep(LONG)
    items.put(1)


@of_2
def test_a_child_process_puts_into_a_queue(world, process_group):
    if world.rank == 0:
        context = multiprocessing.get_context("fork")
        items = context.Queue()
        child = context.Process(target=put_later, args=(items,))
        child.start()
        assert items.get() == 1
        child.join()
    reduce_on_all()


@of_2
def test_a_child_process_works(world, process_group):
    if world.rank == 1:
        subprocess.run(["sleep", str(LONG)], check=True)
    reduce_on_all()


@of_2
def test_a_file_is_polled(world, process_group):
    flag = Path(world.folder) / "flag"
    if world.rank == 0:
        time.sleep(LONG)
        flag.touch()
    else:
        while not flag.exists():
            time.sleep(0.02)
    reduce_on_all()


@of_2
def test_a_key_of_the_store_is_awaited(world, process_group):
    store = dist.distributed_c10d._get_default_store()
    if world.rank == 0:
        time.sleep(LONG)
        store.set("key", "value")
    else:
        store.wait(["key"])
    reduce_on_all()


def add_later(number: int) -> int:
    time.sleep(LONG)
    return number + 1


@of_2
def test_an_rpc_is_slow(world, rpc_agent):
    from torch.distributed import rpc

    if world.rank == 0:
        other = rpc.get_worker_info().name.replace("0", "1")
        assert rpc.rpc_sync(other, add_later, args=(1,)) == 2


def send_later() -> None:
    time.sleep(LONG)
    dist.send(vector(), dst=0)


@of_2
def test_an_rpc_sends_a_message(world, process_group, rpc_agent):
    from torch.distributed import rpc

    if world.rank == 0:
        answer = rpc.rpc_async(1, send_later)
        dist.recv(vector(), src=1)
        answer.wait()


@pytest.fixture
def comes_in_teardown(process_group: Any, world: Any) -> Iterator[None]:
    yield
    if world.rank == 1:
        time.sleep(LONG)
        dist.barrier()


@of_2
def test_a_fixture_comes_in_its_teardown(comes_in_teardown, world):
    if world.rank == 0:
        dist.barrier()
