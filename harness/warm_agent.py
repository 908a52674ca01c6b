"""An RPC agent that stays up from test to test of a warm world, as the default group does.

A test pays a few milliseconds for it instead of a start and a shutdown. It is for many small tests over one kind of
agent: what a test does to the agent itself (a shutdown, a dropped message) is not for these.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from everyrank.errors import MisuseError
from everyrank.record import Leak
from everyrank.rpc import Agent, AgentOptions, backend_options, start

if TYPE_CHECKING:
    from everyrank.rank import Rank

#: What a test gave up may be on its way out: messages, which are sent again where one was lost, and garbage.
_USUALLY, _AT_MOST = 0.05, 3.0

_kept: list[tuple[Agent, AgentOptions]] = []  # of this process: torch has no second one


@contextlib.contextmanager
def warm_agent(rank: Rank, options: AgentOptions) -> Iterator[Agent]:
    """This rank's agent for one test: started by the first test of the world that asks."""
    if options.faults is not None or options.shutdown != "graceful":
        raise MisuseError("a warm agent takes no faults and no abrupt shutdown: ask for the fixture rpc_agent")
    if not _kept:
        with rank.watch.allowing():
            _kept.append((_start(rank, options), options))
    here, started = _kept[-1]
    if started != options:
        raise MisuseError(f"this world's agent was started with {started}, not with {options}")
    try:
        yield here
    finally:
        if not rank.failed():
            _settle(rank)


def _start(rank: Rank, options: AgentOptions) -> Agent:
    world = rank.world
    # Beside the folder of the test, which the agent outlives.
    backend, chosen = backend_options(world, options, store=f"{world.folder}.rpc")
    names = tuple(options.name.format(rank=number) for number in range(world.size))
    start(rank, names[world.rank], backend, chosen, kept=True)
    import torch.distributed.rpc as rpc

    # Connections are made by the first call between two ranks; a test would seem to have left them.
    for future in [rpc.rpc_async(name, _greet) for name in names]:
        future.wait()
    rank.gather("the start of the warm RPC agents", "")
    return Agent(names[world.rank], world.rank, names, chosen)


def _greet() -> None:
    pass


def _settle(rank: Rank) -> None:
    """Wait until nothing of this test is left in any agent. What stays is a leak, and ends this world."""
    import torch.distributed.rpc as torch_rpc

    rpc: Any = torch_rpc
    if not rpc.api._is_current_rpc_agent_set():
        rank.spent.append("the warm RPC agent was shut down")
        return
    if rank.gather("the end of the test's RPC calls", "") is None:
        return  # another rank has failed, which ends this world
    _wait_until_empty(_USUALLY)
    left = rank.gather("what is left in the RPC agents", str(sum(_left().values())))
    if left is None or set(left) == {"0"}:
        return
    gc.collect()
    rank.gather("the end of the garbage", "")
    _wait_until_empty(_AT_MOST)
    for what, count in _left().items():
        if count and what == "RRef":
            many = "s" if count > 1 else ""
            rank.leaks.append(Leak("rref", f"{count} RRef{many} that it owns, still in use here or on another rank"))
        elif count:
            rank.spent.append(f"{count} of {what} left in the warm RPC agent")


def _wait_until_empty(seconds: float) -> None:
    until = time.monotonic() + seconds
    while any(_left().values()) and time.monotonic() < until:
        time.sleep(0.0005)


def _left() -> dict[str, int]:
    """What this rank's agent still holds."""
    from torch._C import _distributed_autograd as autograd
    from torch._C import _distributed_rpc as core

    told: dict[str, Any] = core._rref_context_get_debug_info()
    return {
        "RRef": int(told.get("num_owner_rrefs", "0")),
        "RRef in use elsewhere": int(told.get("num_pending_users", "0")),
        "autograd context": int(autograd._get_debug_info().get("num_autograd_contexts", "0")),
    }
