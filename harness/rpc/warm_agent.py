"""An RPC agent that serves all tests of a warm world, as the default group does.

Each test pays a few milliseconds instead of a start and a shutdown. The agent is meant for many small tests with the
same options. A test that shuts its agent down, or lets it drop messages, needs its own agent.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from everyrank.errors import MisuseError
from everyrank.model.counts import count
from everyrank.rpc.agents import (
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
    from everyrank.rank.context import RankContext

#: Seconds in which references that a test dropped are usually gone: those that nothing holds any more, and then those
#: of young garbage. An error that has passed through frames is such garbage, and these frames hold references.
_SOON, _USUALLY = 0.003, 0.05

_kept: list[tuple[Agent, AgentOptions]] = []  # at most one: torch has one agent in a process


@contextlib.contextmanager
def warm_agent(rank: RankContext, options: AgentOptions) -> Iterator[Agent]:
    """Provide this rank's agent for one test; the first test of the world that asks starts it."""
    if options.faults is not None or options.shutdown != "graceful":
        raise MisuseError("a warm agent takes no faults and no abrupt shutdown: ask for the fixture rpc_agent")
    if not _kept:
        with rank.allowing():
            _kept.append((_start(rank, options), options))
    kept_agent, started = _kept[-1]
    if started != options:
        raise MisuseError(f"this world's agent was started with {started}, not with {options}")
    try:
        yield kept_agent
    finally:
        if rank.may_be_kept():
            _settle(rank)


def _start(rank: RankContext, options: AgentOptions) -> Agent:
    world = rank.world
    backend, chosen = backend_options(world, options, outlives=True)
    names = tuple(options.name.format(rank=number) for number in range(world.size))
    start(rank, names[world.rank], backend, chosen, kept=True)
    import torch.distributed.rpc as rpc

    # The first call between two ranks opens a connection, which would look like a leak of the test.
    for future in [rpc.rpc_async(name, _greet) for name in names]:
        future.wait()
    rank.gather("the start of the warm RPC agents", "")
    return Agent(names[world.rank], world.rank, names, chosen)


def _greet() -> None:
    pass


def _settle(rank: RankContext) -> None:
    """Wait until nothing of this test is left in any agent. What stays is a leak and ends this world."""
    import torch.distributed.rpc as torch_rpc

    rpc: Any = torch_rpc
    if not rpc.api._is_current_rpc_agent_set():
        rank.use_up("shut the warm RPC agent down")
        return
    if rank.gather("the end of the test's calls", "") is not None:
        all_sent()
    if rank.gather("the end of all calls", "") is None:
        rank.use_up("did not see every rank reach the end of the test's RPC calls")
        return
    if _nothing_left(rank, _SOON):
        return
    gc.collect(1)
    if _nothing_left(rank, _USUALLY):
        return
    gc.collect()
    rank.gather("the end of the garbage", "")
    wait_until(lambda: not _left(), SETTLE)
    file_leak(rank.leaks)
    if contexts := _contexts():
        rank.use_up(f"left {count(contexts, 'autograd context')}")


def _nothing_left(rank: RankContext, seconds: float) -> bool:
    """Return whether within this time nothing is left in any agent; all ranks get the same answer."""
    wait_until(lambda: not _left(), seconds)
    counts = rank.gather("what is left in the RPC agents", str(_left()))
    return counts is not None and set(counts) == {"0"}


def _left() -> int:
    """Return how many RRefs and autograd contexts this rank's agent still holds."""
    return owned_rrefs() + _contexts()


def _contexts() -> int:
    from torch._C import _distributed_autograd as autograd

    return int(autograd._get_debug_info().get("num_autograd_contexts", "0"))
