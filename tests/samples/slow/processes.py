"""Other processes that help: signals, files, sockets, agents."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import pty
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.utils.data
from slow import LONG, later, of_2, on_rank_0, reduce_on_all, vector


def note_signals(number: int) -> list[int]:
    got: list[int] = []
    signal.signal(number, lambda *_: got.append(1))
    return got


def pause_until(got: list[int]) -> None:
    while not got:
        signal.pause()
    signal.signal(signal.SIGUSR2, signal.SIG_DFL)


def another_process_sends_a_signal(_):
    got = note_signals(signal.SIGUSR2)
    later(f"kill -USR2 {os.getpid()}")
    pause_until(got)


def a_child_sends_a_signal(_):
    got = note_signals(signal.SIGUSR2)
    with subprocess.Popen(["/bin/sh", "-c", f"sleep {LONG}; kill -USR2 {os.getpid()}"]):
        pause_until(got)


def an_event_is_set_by_a_signal(_):
    event = threading.Event()
    signal.signal(signal.SIGUSR2, lambda *_: event.set())
    later(f"kill -USR2 {os.getpid()}")
    event.wait()
    signal.signal(signal.SIGUSR2, signal.SIG_DFL)


def an_alarm_wakes_it(_):
    got = note_signals(signal.SIGALRM)
    signal.setitimer(signal.ITIMER_REAL, LONG)
    pause_until(got)


def is_stopped_and_continued_from_outside(_):
    later(f"kill -CONT {os.getpid()}")
    os.kill(os.getpid(), signal.SIGSTOP)


def is_stopped_in_a_collective(_):
    stop = f"sleep 1; kill -STOP {os.getpid()}; sleep {LONG}; kill -CONT {os.getpid()}"
    subprocess.run(["sh", "-c", f"({stop}) >/dev/null 2>&1 &"], check=True)
    time.sleep(2)


def another_process_connects(_):
    with socket.create_server(("127.0.0.1", 0)) as server:
        connect = f"import socket; socket.create_connection(('127.0.0.1', {server.getsockname()[1]})).send(b'x')"
        later(f'{shlex.quote(sys.executable)} -c "{connect}"')
        connection, _ = server.accept()
        with connection:
            assert connection.recv(1) == b"x"


def another_process_writes_to_a_fifo(folder):
    fifo = folder / "fifo"
    os.mkfifo(fifo)
    later(f"echo x > {fifo}")
    assert fifo.read_text() == "x\n"


def another_process_holds_a_lock(folder):
    path = folder / "lock"
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


def another_process_posts_a_semaphore(_):
    semaphore = multiprocessing.get_context("fork").Semaphore(0)
    if os.fork() == 0:
        if os.fork() == 0:
            time.sleep(LONG)
            semaphore.release()
        os._exit(0)
    os.wait()
    semaphore.acquire()


def a_person_answers_late_at_a_terminal(_):
    master, terminal = pty.openpty()
    threading.Timer(LONG, os.write, [master, b"c\n"]).start()
    assert os.read(terminal, 10)
    os.close(master)
    os.close(terminal)


def put_later(items: Any) -> None:
    time.sleep(LONG)
    items.put(1)


def a_child_process_puts_into_a_queue(_):
    context = multiprocessing.get_context("fork")
    items = context.Queue()
    child = context.Process(target=put_later, args=(items,))
    child.start()
    assert items.get() == 1
    child.join()


def a_child_process_works(_):
    subprocess.run(["sleep", str(LONG)], check=True)


class Acts(torch.utils.data.Dataset):
    """Does something slow in a worker when it is asked for its only element."""

    def __init__(self, act: Callable[[], object]) -> None:
        self.act = act

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> int:
        time.sleep(LONG)
        self.act()
        return index


def worker_of(act: Callable[[], object]) -> Iterator[Any]:
    """Return an iterator whose worker does this after a while, and is asked at once."""
    return iter(torch.utils.data.DataLoader(Acts(act), num_workers=1))


def a_worker_loads_a_batch(_):
    next(worker_of(lambda: None))


def a_worker_sends_a_signal(_):
    got, rank = note_signals(signal.SIGUSR2), os.getpid()
    batches = worker_of(lambda: os.kill(rank, signal.SIGUSR2))
    pause_until(got)
    next(batches)


def a_worker_writes_to_a_fifo(folder):
    fifo = folder / "fifo"
    os.mkfifo(fifo)
    batches = worker_of(lambda: fifo.write_text("x"))
    assert fifo.read_text() == "x"
    next(batches)


def a_worker_connects(_):
    with socket.create_server(("127.0.0.1", 0)) as server:
        batches = worker_of(lambda: socket.create_connection(server.getsockname()).close())
        server.accept()[0].close()
        next(batches)


test_rank_0_waits_for_another_process = on_rank_0(
    another_process_sends_a_signal,
    a_child_sends_a_signal,
    an_event_is_set_by_a_signal,
    an_alarm_wakes_it,
    is_stopped_and_continued_from_outside,
    is_stopped_in_a_collective,
    another_process_connects,
    another_process_writes_to_a_fifo,
    another_process_holds_a_lock,
    another_process_posts_a_semaphore,
    a_person_answers_late_at_a_terminal,
    a_child_process_puts_into_a_queue,
    a_child_process_works,
    a_worker_loads_a_batch,
    a_worker_sends_a_signal,
    a_worker_writes_to_a_fifo,
    a_worker_connects,
)


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
