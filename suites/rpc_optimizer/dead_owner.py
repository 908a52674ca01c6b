"""The law of ``rpc-optimizer`` about an owner that dies. Its workers are processes of its own, which may."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from everyrank import current_world
from everyrank.rpc import AgentOptions, backend_options
from everyrank.suites.compare import check
from everyrank.suites.contract import Point
from everyrank.suites.errors import Deviation
from everyrank.suites.rpc_optimizer import points
from everyrank.suites.rpc_optimizer.arena import Arena, error_of, loss, subject_acts
from everyrank.suites.rpc_optimizer.laws import CONTRACT, SGD

#: The RPC timeout, and how long after it a client that has not come back hangs. Only a failing case waits for them.
TIMEOUT, PATIENCE = 5.0, 15.0


@CONTRACT.law("errors.dead-owner", lambda: points.plain(1), fixtures=(), fresh=True)
def dead_owner(place: Arena, point: Point) -> None:
    """A killed owner gives an error within the RPC timeout, never a hang."""
    said = _of_workers(3, lambda: _drive(Arena(place.subject, point, 3, place.seed)))
    check(said == "well", said or f"the step did not come back within {TIMEOUT + PATIENCE:g} s of the owner's death")


def _drive(place: Arena) -> None:
    parameters = place.own([(1, (3,)), (2, (4,)), (0, (2,))])
    with subject_acts():
        ours = place.build(SGD, parameters, lr=0.1)
    place.step_that_moves(ours, parameters)
    context = dist_autograd.context()
    context_id = context.__enter__()  # and never left: it cannot be closed on a worker that is dead
    dist_autograd.backward(context_id, [place.remote_loss(parameters, place.inputs(parameters, 2), loss)])
    os.kill(place.on(2, os.getpid), signal.SIGKILL)
    error_of(lambda: ours.step(context_id), "a step for an owner that was killed")


def _of_workers(size: int, drive: Callable[[], None]) -> str:
    """Fork workers with an agent each and drive them from the first: "well", what went wrong, or "" for a hang."""
    reading, writing = os.pipe()
    workers = []
    for rank in range(size):
        pid = os.fork()
        if pid == 0:
            _work(rank, size, drive, writing)
        workers.append(pid)
    os.close(writing)
    said = b""
    try:
        while select.select([reading], [], [], TIMEOUT + PATIENCE)[0]:
            part = os.read(reading, 4096)
            if not part:
                break
            said += part
            if said.endswith(b"\0"):
                break
    finally:
        os.close(reading)
        for pid in workers:
            os.kill(pid, signal.SIGKILL)
        for pid in workers:
            os.waitpid(pid, 0)
    return said.rstrip(b"\0").decode()


def _work(rank: int, size: int, drive: Callable[[], None], writing: int) -> None:
    """One worker: serves the others until it is killed."""
    try:
        # After a fork torch makes its thread pool anew at the first use, and two threads that both do it abort.
        torch.set_num_threads(1)
        world = replace(current_world(), rank=rank, size=size)
        backend, options = backend_options(world, AgentOptions(rpc_timeout=TIMEOUT))
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
