"""A counter on one worker that all workers increase, over RPC."""

from __future__ import annotations

import threading

import torch.distributed.rpc as rpc


class Counter:
    def __init__(self) -> None:
        self._count = 0
        self._lock = threading.Lock()

    def add(self, amount: int) -> int:
        with self._lock:
            self._count += amount
            return self._count


def everywhere(workers: tuple[str, ...], amount: int, owner: str) -> int:
    """Let every worker increase a new counter, and return its final count."""
    counter = rpc.remote(owner, Counter)
    done = [rpc.rpc_async(worker, _add, args=(counter, amount)) for worker in workers]
    for future in done:
        future.wait()
    return counter.rpc_sync().add(0)


def _add(counter: rpc.RRef, amount: int) -> None:
    counter.rpc_sync().add(amount)
