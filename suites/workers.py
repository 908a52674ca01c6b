"""RPC workers that a law may kill: processes of its own, beside the ranks, whose death is the world's."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.distributed.rpc as rpc
from everyrank import current_world
from everyrank.rpc import AgentOptions, backend_options
from everyrank.suites.errors import Deviation


def of_workers(size: int, drive: Callable[[], None], timeout: float, patience: float) -> None:
    """Fork workers with an agent each, and drive them from the first. Raises what went wrong, or that it hangs."""
    reading, writing = os.pipe()
    workers = []
    for rank in range(size):
        pid = os.fork()
        if pid == 0:
            _work(rank, size, drive, timeout, writing)
        workers.append(pid)
    os.close(writing)
    said = b""
    try:
        while not said.endswith(b"\0") and select.select([reading], [], [], patience)[0]:
            part = os.read(reading, 4096)
            if not part:
                break
            said += part
    finally:
        os.close(reading)
        for pid in workers:
            os.kill(pid, signal.SIGKILL)
        for pid in workers:
            os.waitpid(pid, 0)
    if said != b"well\0":
        raise Deviation(said.rstrip(b"\0").decode() or f"no end within {patience:g} s of a worker's death")


def _work(rank: int, size: int, drive: Callable[[], None], timeout: float, writing: int) -> None:
    """One worker: serves the others until it is killed."""
    try:
        # After a fork torch makes its thread pool anew at the first use, and two threads that both do it abort.
        torch.set_num_threads(1)
        world = replace(current_world(), rank=rank, size=size)
        backend, options = backend_options(world, AgentOptions(rpc_timeout=timeout))
        rpc.init_rpc(f"worker{rank}", backend=backend, rank=rank, world_size=size, rpc_backend_options=options)
        if rank == 0:
            try:
                drive()
                said = "well"
            except Exception as error:
                said = f"{'' if isinstance(error, Deviation) else type(error).__name__ + ': '}{error}"
            os.write(writing, said.encode()[:4000] + b"\0")
        while True:
            signal.pause()
    finally:
        os._exit(1)
