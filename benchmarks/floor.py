"""The floor: worlds that only use ``os.fork``, without pytest and without a verdict.

``python -m benchmarks.floor group 4 30`` prints the seconds that one such world takes from its start to its end, and
those of the processors; ``again 4 30`` prints them for one round among many in a single world, and ``again-batch``
for ranks under the scheduling policy that everyrank gives its ranks.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.distributed.rpc as rpc


def group(rank: int, size: int, folder: str) -> None:
    """Open a gloo group over a FileStore, run one all_reduce, and destroy the group."""
    store = dist.FileStore(os.path.join(folder, "store"), size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    tensor = torch.full((3,), float(rank))
    dist.all_reduce(tensor)
    assert tensor.eq(size * (size - 1) / 2).all()
    dist.destroy_process_group()


def again(rounds: int) -> Callable[[int, int, str], None]:
    """Return a body that opens one group and repeats the least that a test in a warm world needs: an all_reduce and a
    barrier."""

    def body(rank: int, size: int, folder: str) -> None:
        store = dist.FileStore(os.path.join(folder, "store"), size)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
        dist.barrier()
        started, used = time.perf_counter(), time.process_time()
        for _ in range(rounds):
            dist.all_reduce(torch.full((3,), float(rank)))
            dist.barrier()
        taken, used_by_all = time.perf_counter() - started, torch.tensor(time.process_time() - used)
        dist.all_reduce(used_by_all)
        if rank == 0:
            print(taken / rounds, used_by_all.item() / rounds, flush=True)
        dist.destroy_process_group()

    return body


def agent(rank: int, size: int, folder: str) -> None:
    """Start a TensorPipe agent with the cheap transport, call a neighbour, and shut the agent down."""
    options = rpc.TensorPipeRpcBackendOptions(
        init_method=f"file://{folder}/rpc", num_worker_threads=8, _transports=["uv"], _channels=["basic"]
    )
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=size, rpc_backend_options=options)
    vector = torch.ones(2)
    assert rpc.rpc_sync(f"worker{(rank + 1) % size}", torch.add, args=(vector, vector)).eq(2).all()
    rpc.shutdown()


def world(body: Callable[[int, int, str], None], size: int) -> None:
    """Fork the ranks, wait for all, and check that all succeeded."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = []
        for rank in range(size):
            pid = os.fork()
            if pid == 0:
                _be_rank(body, rank, size, folder)
            ranks.append(pid)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks]
        if any(codes):
            raise RuntimeError(f"the floor itself failed, with exit codes {codes}")


def _be_rank(body: Callable[[int, int, str], None], rank: int, size: int, folder: str) -> None:
    signal.alarm(120)  # a stuck floor ends
    try:
        torch.set_num_threads(1)
        body(rank, size, folder)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    os.environ["GLOO_SOCKET_IFNAME"] = os.environ["TP_SOCKET_IFNAME"] = "lo"
    name, size, worlds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    if name.startswith("again"):
        if name == "again-batch":
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        world(again(worlds), size)
        sys.exit()
    body = {"group": group, "agent": agent}[name]
    started, before = time.perf_counter(), os.times()
    for _ in range(worlds):
        world(body, size)
    taken, after = time.perf_counter() - started, os.times()
    print(taken / worlds, sum(after[:4]) / worlds - sum(before[:4]) / worlds)  # the first four are processor times
