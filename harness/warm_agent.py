"""An RPC agent that stays up from test to test of a warm world, as the default group does.

A test pays a few milliseconds for it instead of a start and a shutdown. It is for many small tests over one kind of
agent: what a test does to the agent itself (a shutdown, a dropped message) is not for these.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from everyrank.errors import MisuseError
from everyrank.rpc import (
    SETTLE,
    Agent,
    AgentOptions,
    all_sent,
    backend_options,
    file_leak,
    owned_rrefs,
    start,
    wait_until,
)

if TYPE_CHECKING:
    from everyrank.rank import Rank

#: What a test gave up is usually gone within this; what is not may be garbage, in a cycle.
_USUALLY = 0.05

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
        rank.spent.append("shut the warm RPC agent down")
        return
    if rank.gather("the end of the test's calls", "") is not None:
        all_sent()
    if rank.gather("the end of all calls", "") is None:
        rank.spent.append("did not see every rank come to the end of the test's RPC calls")
        return
    wait_until(lambda: not _left(), _USUALLY)
    left = rank.gather("what is left in the RPC agents", str(_left()))
    if left is not None and set(left) == {"0"}:
        return
    gc.collect()
    rank.gather("the end of the garbage", "")
    wait_until(lambda: not _left(), SETTLE)
    file_leak(rank.leaks)
    if contexts := _contexts():
        rank.spent.append(f"left {contexts} autograd contexts")


def _left() -> int:
    """What this rank's agent still holds."""
    return owned_rrefs() + _contexts()


def _contexts() -> int:
    from torch._C import _distributed_autograd as autograd

    return int(autograd._get_debug_info().get("num_autograd_contexts", "0"))
