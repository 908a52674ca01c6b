"""RPC agents for tests, with their own rendezvous, cheap transports, and a shutdown in every case."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from everyrank.errors import MisuseError
from everyrank.model.counts import count
from everyrank.patience import CoreWaits, Patience
from everyrank.rank.context import BROKEN
from everyrank.rank.world import World
from everyrank.wire.messages import Leak

if TYPE_CHECKING:
    from everyrank.rank.context import RankContext
    from torch._C._distributed_rpc import RpcBackendOptions

#: The transports on one host. TensorPipe's default transports map shared memory, at 15,000 page faults a rank.
LOCAL_TRANSPORTS = ("uv",)

#: Seconds to wait for messages that drop references. A dropped message is sent again.
SETTLE = 3.0

#: Seconds that an agent gets to end after a failure in a test's call; it ends in milliseconds or never. Other ranks
#: fail because of this end, and the first failure must be reported within the harness's GRACE after theirs.
PROMPT = 0.2
#: The same in a test's teardown. Two ranks may need this time in turn, within the harness's BUSY_GRACE.
PARTING = 2.0

Test = TypeVar("Test", bound=Callable[..., Any])


@dataclass(frozen=True)
class Faults:
    """The messages that torch's faulty agent drops or delays, by torch's names of the message types."""

    drop: tuple[str, ...] = ()
    delay: dict[str, float] = field(default_factory=dict)
    times: int = 1
    """How often each message is dropped before it goes through."""


@dataclass(frozen=True)
class AgentOptions:
    """How an agent is started: the arguments of ``@pytest.mark.rpc(...)``."""

    name: str = "worker{rank}"
    transports: tuple[str, ...] | str = LOCAL_TRANSPORTS
    num_worker_threads: int = 8
    rpc_timeout: float = 60.0
    shutdown: str = "graceful"
    drop: tuple[str, ...] | list[str] = ()
    delay: dict[str, float] = field(default_factory=dict)
    times: int = 1

    def __post_init__(self) -> None:
        if self.shutdown not in ("graceful", "abrupt"):
            raise MisuseError(f"the mark rpc: shutdown must be 'graceful' or 'abrupt', not {self.shutdown!r}")

    @property
    def faults(self) -> Faults | None:
        if not self.drop and not self.delay:
            return None
        return Faults(tuple(self.drop), dict(self.delay), self.times)


def options_from_marks(marks: Iterable[pytest.Mark]) -> AgentOptions:
    """Return the options from a test's marks ``rpc``, given with the nearest mark first."""
    known = [option.name for option in fields(AgentOptions)]
    chosen: dict[str, Any] = {}
    for mark in marks:
        if mark.args:
            raise MisuseError(f"the mark rpc takes keywords only, not {mark.args[0]!r}: it takes {', '.join(known)}")
        for name, value in mark.kwargs.items():
            if name not in known:
                raise MisuseError(f"the mark rpc takes no {name!r}: it takes {', '.join(known)}")
            chosen.setdefault(name, value)
    return AgentOptions(**chosen)


@dataclass(frozen=True)
class Agent:
    """This rank's RPC agent, as the fixture ``rpc_agent`` provides it."""

    name: str
    rank: int
    names: tuple[str, ...]
    """The names of all workers, by rank."""
    options: RpcBackendOptions


def faulty_agent_missing() -> str:
    """Return why messages cannot be dropped or delayed here, or an empty text."""
    try:
        from torch.distributed.rpc import _testing
    except ImportError:
        return "this torch has no faulty RPC agent (torch.distributed.rpc._testing)"
    if not _testing.is_available():
        return "this torch was built without the faulty RPC agent"
    return ""


#: The failure of a test that needs an agent if numpy is missing.
NO_NUMPY = "torch starts no RPC agent without numpy: install numpy beside torch"


def numpy_missing() -> str:
    """Return why no agent can be started here, or an empty text. torch's agents store their addresses in arrays."""
    try:
        import numpy  # noqa: F401
    except ImportError:
        return NO_NUMPY
    return ""


def backend_options(world: World, options: AgentOptions, outlives: bool = False) -> tuple[Any, RpcBackendOptions]:
    """Return the backend and the options for ``init_rpc``, for one agent of this world that may outlive its test.

    The agents find each other by a store and use it again when they end.
    """
    import torch.distributed.rpc as torch_rpc

    rpc: Any = torch_rpc
    rendezvous = world.rendezvous("rpc", outlives)
    if options.faults is not None:
        if missing := faulty_agent_missing():
            raise MisuseError(missing)

        return (
            rpc.backend_registry.BackendType.FAULTY_TENSORPIPE,
            rpc.backend_registry.construct_rpc_backend_options(
                rpc.backend_registry.BackendType.FAULTY_TENSORPIPE,
                init_method=rendezvous,
                num_worker_threads=options.num_worker_threads,
                rpc_timeout=options.rpc_timeout,
                messages_to_fail=list(options.faults.drop),
                messages_to_delay=options.faults.delay,
                num_fail_sends=options.faults.times if options.faults.drop else 0,
            ),
        )
    chosen: dict[str, Any] = {}
    if options.transports != "all":
        transports = [options.transports] if isinstance(options.transports, str) else list(options.transports)
        chosen = {"_transports": transports}
        if "shm" not in transports:
            chosen["_channels"] = ["basic"]
    return rpc.backend_registry.BackendType.TENSORPIPE, rpc.TensorPipeRpcBackendOptions(
        init_method=rendezvous,
        num_worker_threads=options.num_worker_threads,
        rpc_timeout=options.rpc_timeout,
        **chosen,
    )


@contextlib.contextmanager
def agent(rank: RankContext, options: AgentOptions) -> Iterator[Agent]:
    """Provide an agent for one test. It is shut down in every case: gracefully if all ranks did well."""
    world = rank.world
    backend, chosen = backend_options(world, options)
    names = tuple(options.name.format(rank=number) for number in range(world.size))
    start(rank, names[world.rank], backend, chosen)
    try:
        yield Agent(names[world.rank], world.rank, names, chosen)
    finally:
        if rank.failed():
            let_go(rank)
        else:
            shut_down(rank, graceful=options.shutdown == "graceful")


def start(rank: RankContext, name: str, backend: Any, options: RpcBackendOptions, kept: bool = False) -> None:
    """Start this rank's agent, for one test or for all tests of this process."""
    import torch.distributed.rpc as torch_rpc

    rpc: Any = torch_rpc
    if missing := numpy_missing():
        rank.notes[BROKEN] = missing
        pytest.fail(missing, pytrace=False)
    if not kept:
        # A second agent of one process never deletes its RRefs: see docs/findings/rpc-second-agent.md.
        rank.use_up("ran an RPC agent")
    with warnings.catch_warnings():
        # torch itself uses its deprecated interface here; the author of a test cannot change that.
        warnings.filterwarnings("ignore", "You are using a Backend", UserWarning)
        rpc.init_rpc(
            name,
            backend=backend,
            rank=rank.world.rank,
            world_size=rank.world.size,
            rpc_backend_options=options,
        )


def shut_down(rank: RankContext, graceful: bool) -> None:
    """End this rank's agent: gracefully if every rank does. RRefs that are still in use then are leaks."""
    import torch.distributed.rpc as torch_rpc

    rpc: Any = torch_rpc
    if not rpc.api._is_current_rpc_agent_set():
        return  # the test shut it down itself
    if graceful:
        if rank.gather("the end of the RPC agents", "") is None:
            let_go(rank)  # a graceful end waits for all ranks, and never ends if a rank has failed
            return
        all_sent()
        # Count RRefs now: no rank makes another, and every owner knows its references.
        if rank.gather("the end of all calls", "") is not None:
            owned = rank.gather("the RRefs still owned", str(owned_rrefs()))
            if owned is not None and set(owned) != {"0"}:
                _file_leaks(rank.leaks)
    # torch's own check runs after torch has deleted the references whose owners it looks for.
    before, rpc.api._ignore_rref_leak = rpc.api._ignore_rref_leak, True
    try:
        rpc.shutdown(graceful=graceful)
    finally:
        rpc.api._ignore_rref_leak = before


def let_go(rank: RankContext) -> None:
    """End the agent after a failure, even during calls from other ranks; their calls end with an error.

    torch waits for the calls that it still handles, and some never end (docs/findings/rpc-abrupt-shutdown.md).
    A failure must not become a hang. This process is not used again, so such calls may stay, and the agent is a leak.
    An error that torch raises here is only a warning beside the failure.
    """
    import torch.distributed.rpc as torch_rpc

    rpc: Any = torch_rpc
    if not rpc.api._is_current_rpc_agent_set():
        return
    rank.use_up("ended an RPC agent in the middle of its calls")
    ending = threading.Thread(target=shut_down, args=(rank, False), daemon=True)
    with rank.allowing():
        ending.start()
        ending.join(PROMPT if rank.calling else PARTING)
    if rank.calling:
        rank.item.addfinalizer(functools.partial(ending.join, PARTING))


def _file_leaks(leaks: list[Leak]) -> None:
    """Wait for references that are about to be dropped; file those that are still in use, here or on another rank."""
    gc.collect()
    wait_until(lambda: not owned_rrefs(), SETTLE)
    file_leak(leaks)


def file_leak(leaks: list[Leak]) -> None:
    """File the RRefs that are still in use as a leak."""
    if owned := owned_rrefs():
        leaks.append(Leak("rref", f"{count(owned, 'RRef')} that it owns, still in use here or on another rank"))


def wait_until(holds: Callable[[], bool], seconds: float) -> None:
    """Wait until a condition holds that depends on messages of other ranks."""
    patience = Patience(seconds, CoreWaits([os.getpid()]))
    while not holds() and patience.turn():
        time.sleep(0.0005)


_PENDING = ("num_pending_users", "num_pending_futures", "agent.client_active_calls")


def all_sent() -> None:
    """Wait until every call of this rank is answered and every RRef that it made is known to its owner."""
    import torch.distributed.rpc as torch_rpc

    rpc: Any = torch_rpc
    agent = rpc.api._get_current_rpc_agent()

    def quiet() -> bool:
        counts = {**_rref_counts(), **agent.get_debug_info()}
        return all(counts.get(name, "0") == "0" for name in _PENDING)

    wait_until(quiet, SETTLE)


def owned_rrefs() -> int:
    """Return the number of RRefs whose value is on this rank and that any rank still refers to."""
    return int(_rref_counts().get("num_owner_rrefs", "0"))


def _rref_counts() -> dict[str, str]:
    from torch._C import _distributed_rpc as core

    counts: dict[str, str] = core._rref_context_get_debug_info()
    return counts
