"""RPC workers that a law may kill: they are not ranks, since the death of a rank ends its world."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.distributed.rpc as rpc
from everyrank import current_world
from everyrank.rpc.agents import AgentOptions, backend_options
from everyrank.suites.errors import Deviation


def drive_workers(size: int, drive: Callable[[], None], timeout: float, patience: float) -> None:
    """Fork workers, each with an agent, and call ``drive`` in the first. Raise Deviation if that fails or hangs."""
    reading, writing = os.pipe()
    workers = []
    for rank in range(size):
        pid = os.fork()
        if pid == 0:
            _work(rank, size, drive, timeout, writing)
        workers.append(pid)
    os.close(writing)
    message = b""
    try:
        while not message.endswith(b"\0") and select.select([reading], [], [], patience)[0]:
            part = os.read(reading, 4096)
            if not part:
                break
            message += part
    finally:
        os.close(reading)
        for pid in workers:
            os.kill(pid, signal.SIGKILL)
        for pid in workers:
            os.waitpid(pid, 0)
    if message != b"well\0":
        raise Deviation(message.rstrip(b"\0").decode() or f"no end within {patience:g} s of a worker's death")


def _work(rank: int, size: int, drive: Callable[[], None], timeout: float, writing: int) -> None:
    """Run one worker: serve the others until this process is killed."""
    try:
        # After a fork torch makes a new thread pool at the first use; two threads that both do so would abort.
        torch.set_num_threads(1)
        world = replace(current_world(), rank=rank, size=size)
        backend, options = backend_options(world, AgentOptions(rpc_timeout=timeout))
        rpc.init_rpc(f"worker{rank}", backend=backend, rank=rank, world_size=size, rpc_backend_options=options)
        if rank == 0:
            try:
                drive()
                message = "well"
            except Exception as error:
                message = f"{'' if isinstance(error, Deviation) else type(error).__name__ + ': '}{error}"
            os.write(writing, message.encode()[:4000] + b"\0")
        while True:
            signal.pause()
    finally:
        os._exit(1)
