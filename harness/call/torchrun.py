"""A call in a script that torchrun has started: the ranks are there already, and this process is one of them."""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from everyrank.call.value import pack, unpack
from everyrank.errors import MisuseError, WorldFailed
from everyrank.model.counts import count
from everyrank.wire import torchrun_variables

#: How often a rank that has returned asks whether the others have (in seconds).
_OFTEN = 0.02

_calls = 0  # of this process: all ranks make the same calls


def is_rank() -> bool:
    """Return whether torchrun, or what sets the same variables, has made this process a rank."""
    return all(name in os.environ for name in torchrun_variables.NEEDED) and "PYTEST_CURRENT_TEST" not in os.environ


def run_here(function: Callable[[], Any], ranks: int | None, group: bool, asked: Mapping[str, Any]) -> list[Any]:
    """Call the function on this rank, and return what it returned on each. Every rank makes this call."""
    global _calls
    rank, size = torchrun_variables.rank(), torchrun_variables.size()
    if ranks not in (None, size):
        raise MisuseError(
            f"torchrun has started {count(size, 'rank')}, and the call asks for {ranks}: leave `ranks` out"
        )
    if choices := [name for name, value in asked.items() if value and name != "backend"]:
        raise MisuseError(f"torchrun has started the ranks, so this call cannot choose `{choices[0]}`: leave it out")
    _calls += 1
    with _group(f"everyrank.run {_calls}", group, asked.get("backend")) as store:
        shared = _Shared(store, rank)
        try:
            packed = pack(function, function())
        except BaseException as error:
            first = shared.fail(traceback.format_exc())
            if first == rank:
                raise
            raise shared.failure(first) from error  # this rank has only felt that another one is gone
        shared.bring(packed)
        return [unpack(function, shared.returned(each)) for each in range(size)]


class _Shared:
    """What the ranks of one call report to each other, by the store of their group."""

    def __init__(self, store: Any, rank: int) -> None:
        self._store, self._rank = store, rank

    def bring(self, packed: bytes) -> None:
        self._store.set(f"returned {self._rank}", pickle.dumps((True, packed)))

    def fail(self, text: str) -> int:
        """Report it to the others; return the rank that failed first."""
        self._store.set(f"returned {self._rank}", pickle.dumps((False, text)))
        return int(self._store.compare_set("failed first", "", str(self._rank)))

    def failure(self, rank: int) -> WorldFailed:
        _, text = pickle.loads(self._store.get(f"returned {rank}"))
        return WorldFailed(f"rank {rank} failed\n\n{text}")

    def returned(self, rank: int) -> bytes:
        """Return what the function returned on a rank, packed, once it has. If any rank fails before, raise."""
        key, first = f"returned {rank}", "failed first"
        while not self._store.check([key]):
            if self._store.check([first]):
                raise self.failure(int(self._store.get(first)))
            time.sleep(_OFTEN)  # if a rank dies, torchrun ends all
        fine, packed = pickle.loads(self._store.get(key))
        if not fine:
            raise self.failure(rank)
        return bytes(packed)


@contextlib.contextmanager
def _group(call: str, with_group: bool, backend: str | None) -> Iterator[Any]:
    """Bring the default group up, unless the script has done so; yield a store of all ranks, for this call alone."""
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import _get_default_store

    if dist.is_initialized():
        yield dist.PrefixStore(call, _get_default_store())
        return
    # The group of each call has keys of its own: one that is opened twice by the same keys finds ranks that are gone.
    store = dist.PrefixStore(call, _rendezvous())
    if not with_group:
        yield store
        return
    rank, size = torchrun_variables.rank(), torchrun_variables.size()
    dist.init_process_group(backend or "gloo", store=store, rank=rank, world_size=size)
    # A rank that fails closes its group at once. One that is connecting then would wait for it.
    store.set(f"connected {rank}", "")
    store.wait([f"connected {each}" for each in range(size)])
    try:
        yield store
    finally:
        dist.destroy_process_group()


@functools.cache
def _rendezvous() -> Any:
    import torch.distributed as dist

    store, _, _ = next(dist.rendezvous("env://"))
    return store
