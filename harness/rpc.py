"""RPC agents for tests: a rendezvous of their own, cheap transports, and a shutdown in every case."""

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
from everyrank.record import Leak
from everyrank.world import World, current_world

if TYPE_CHECKING:
    from everyrank.rank import Rank
    from torch._C._distributed_rpc import RpcBackendOptions

#: On one machine. TensorPipe's default transports map shared memory, at 15,000 page faults a rank.
LOCAL_TRANSPORTS = ("uv",)

#: The message that drops a reference may be on its way, and is sent again when a fault drops it.
SETTLE = 3.0

#: An agent that is let go ends in milliseconds, or never. In a test's call, no more than this: others fail by it, and
#: the failure that comes first must be told within the harness's GRACE of theirs.
PROMPT = 0.2
#: In its teardown. Two ranks may need this one after the other, within the harness's BUSY_GRACE.
PARTING = 2.0

Test = TypeVar("Test", bound=Callable[..., Any])


@dataclass(frozen=True)
class Faults:
    """Messages that torch's faulty agent drops or delays, by the names of its message types."""

    drop: tuple[str, ...] = ()
    delay: dict[str, float] = field(default_factory=dict)
    times: int = 1
    """How often each message is dropped before it goes through."""


@dataclass(frozen=True)
class AgentOptions:
    """How an agent is started; what ``@pytest.mark.rpc(...)`` takes."""

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
            raise MisuseError(f"shutdown must be 'graceful' or 'abrupt', not {self.shutdown!r}")

    @property
    def faults(self) -> Faults | None:
        if not self.drop and not self.delay:
            return None
        return Faults(tuple(self.drop), dict(self.delay), self.times)


def options_from_marks(marks: Iterable[pytest.Mark]) -> AgentOptions:
    """What the marks ``rpc`` of a test say, the nearest mark first."""
    known = [one.name for one in fields(AgentOptions)]
    chosen: dict[str, Any] = {}
    for mark in marks:
        if mark.args:
            raise MisuseError(f"the mark rpc takes keywords only, not {mark.args[0]!r}: {', '.join(known)}")
        for name, value in mark.kwargs.items():
            if name not in known:
                raise MisuseError(f"the mark rpc takes no {name!r}, but {', '.join(known)}")
            chosen.setdefault(name, value)
    return AgentOptions(**chosen)


@dataclass(frozen=True)
class Agent:
    """This rank's RPC agent, as the fixture ``rpc_agent`` gives it."""

    name: str
    rank: int
    names: tuple[str, ...]
    """The names of all workers, by rank."""
    options: RpcBackendOptions


def faulty_agent_missing() -> str:
    """Why messages cannot be dropped or delayed here, or nothing."""
    try:
        from torch.distributed.rpc import _testing
    except ImportError:
        return "this torch has no faulty RPC agent (torch.distributed.rpc._testing)"
    if not _testing.is_available():
        return "this torch was built without the faulty RPC agent"
    return ""


#: What a test fails with where an agent would need numpy; the preflight of the suites knows it by this text.
NO_NUMPY = "torch starts no RPC agent without numpy: install numpy beside torch"


def numpy_missing() -> str:
    """Why no agent can be started here, or nothing. torch's agents turn their addresses into arrays."""
    try:
        import numpy  # noqa: F401
    except ImportError:
        return NO_NUMPY
    return ""


def backend_options(world: World, options: AgentOptions, store: str = "") -> tuple[Any, RpcBackendOptions]:
    """The backend and the options that ``init_rpc`` takes, for one agent of this world.

    The agents find each other by the file ``store``, and go back to it when they end.
    """
    import torch.distributed.rpc as torch_rpc

    rpc: Any = torch_rpc
    rendezvous = f"file://{store or os.path.join(world.folder, 'rpc')}"
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
def agent(rank: Rank, options: AgentOptions) -> Iterator[Agent]:
    """An agent for one test. It is shut down in every case: gracefully when all ranks did well."""
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


def start(rank: Rank, name: str, backend: Any, options: RpcBackendOptions, kept: bool = False) -> None:
    """Start this rank's agent, for one test or for all that this process will serve."""
    import torch.distributed.rpc as torch_rpc

    rpc: Any = torch_rpc
    if missing := numpy_missing():
        pytest.fail(missing, pytrace=False)
    if not kept:
        # A second agent of one process never deletes its RRefs: see docs/findings/rpc-second-agent.md.
        rank.spent.append("ran an RPC agent")
    with warnings.catch_warnings():
        # torch's own use of its own deprecated way; nobody who writes a test can do anything about it.
        warnings.filterwarnings("ignore", "You are using a Backend", UserWarning)
        rpc.init_rpc(
            name,
            backend=backend,
            rank=rank.world.rank,
            world_size=rank.world.size,
            rpc_backend_options=options,
        )


def shut_down(rank: Rank, graceful: bool) -> None:
    """End this rank's agent: gracefully if every rank comes to it. RRefs that are still in use then are leaks."""
    import torch.distributed.rpc as torch_rpc

    rpc: Any = torch_rpc
    if not rpc.api._is_current_rpc_agent_set():
        return  # the test shut it down itself
    if graceful:
        if rank.gather("the end of the RPC agents", "") is None:
            let_go(rank)  # a graceful end waits for all ranks, and for ever for one that has failed
            return
        all_sent()
        # Counted now that no rank makes another, and none is on its way to its owner.
        if rank.gather("the end of all calls", "") is not None:
            owned = rank.gather("the RRefs still owned", str(owned_rrefs()))
            if owned is not None and set(owned) != {"0"}:
                _file_leaks(rank.leaks)
    # torch's own check comes after it has deleted the references whose owners it looks for.
    before, rpc.api._ignore_rref_leak = rpc.api._ignore_rref_leak, True
    try:
        rpc.shutdown(graceful=graceful)
    finally:
        rpc.api._ignore_rref_leak = before


def let_go(rank: Rank) -> None:
    """End the agent after a failure, in the middle of whatever this rank is called to do; what others wait for ends.

    torch waits for the calls that it still works on, and some never end (docs/findings/rpc-abrupt-shutdown.md).
    A failure must not become a hang by it: the process is not used again, so they may stay, and the agent is a leak.
    What torch raises here is a warning only, beside the failure.
    """
    import torch.distributed.rpc as torch_rpc

    rpc: Any = torch_rpc
    if not rpc.api._is_current_rpc_agent_set():
        return
    rank.spent.append("ended an RPC agent in the middle of its calls")
    ending = threading.Thread(target=shut_down, args=(rank, False), daemon=True)
    with rank.watch.allowing():
        ending.start()
        ending.join(PROMPT if rank.calling else PARTING)
    if rank.calling:
        rank.item.addfinalizer(functools.partial(ending.join, PARTING))


def _file_leaks(leaks: list[Leak]) -> None:
    """Wait for references that are on their way out; what is left, on this rank or another, is in use."""
    gc.collect()
    wait_until(lambda: not owned_rrefs(), SETTLE)
    file_leak(leaks)


def file_leak(leaks: list[Leak]) -> None:
    """Tell of the RRefs that are still in use."""
    if owned := owned_rrefs():
        many = "s" if owned > 1 else ""
        leaks.append(Leak("rref", f"{owned} RRef{many} that it owns, still in use here or on another rank"))


def wait_until(holds: Callable[[], bool], seconds: float) -> None:
    """Wait for what other ranks' messages will bring about."""
    until = time.monotonic() + seconds
    while not holds() and time.monotonic() < until:
        time.sleep(0.0005)


_PENDING = ("num_pending_users", "num_pending_futures", "agent.client_active_calls")


def all_sent() -> None:
    """Wait until every call of this rank has been answered, and every RRef that it made is known to its owner."""
    import torch.distributed.rpc as torch_rpc

    rpc: Any = torch_rpc
    agent = rpc.api._get_current_rpc_agent()

    def quiet() -> bool:
        told = {**_told(), **agent.get_debug_info()}
        return all(told.get(what, "0") == "0" for what in _PENDING)

    wait_until(quiet, SETTLE)


def owned_rrefs() -> int:
    """RRefs whose value lives here and that something, on whichever rank, still refers to."""
    return int(_told().get("num_owner_rrefs", "0"))


def _told() -> dict[str, str]:
    from torch._C import _distributed_rpc as core

    told: dict[str, str] = core._rref_context_get_debug_info()
    return told


class RpcAgentTestFixture:
    """A mixin for test classes, plain or unittest: every method runs on ``world_size`` ranks.

    The names are those of torch's fixture. Methods that need an agent carry ``@dist_init``.
    """

    everyrank_world = True

    #: Overridden in a subclass, as an attribute or as a property.
    world_size: int = 4

    transports: tuple[str, ...] | str = LOCAL_TRANSPORTS
    num_worker_threads: int = 8
    rpc_timeout: float = 60.0
    _drop: tuple[str, ...] = ()
    _delay: dict[str, float] = {}

    #: How often a message that is dropped is dropped before it goes through.
    fail_times: int = 1

    @property
    def rank(self) -> int:
        """Of this rank; a test case that starts its processes by itself sets it."""
        return int(vars(self)["rank"]) if "rank" in vars(self) else current_world().rank

    @rank.setter
    def rank(self, rank: int) -> None:
        vars(self)["rank"] = rank

    @property
    def worker_id(self) -> int:
        return self.rank

    @property
    def file_name(self) -> str:
        """A path that no rank has used yet: give it to a store of your own."""
        return str(vars(self).get("file_name") or os.path.join(current_world().folder, "file"))

    @file_name.setter
    def file_name(self, name: str) -> None:
        vars(self)["file_name"] = name

    @property
    def init_method(self) -> str:
        return f"file://{self.file_name}"

    @property
    def file_init_method(self) -> str:
        return self.init_method

    @property
    def rpc_backend(self) -> Any:
        return self._backend_and_options()[0]

    @property
    def rpc_backend_options(self) -> RpcBackendOptions:
        return self._backend_and_options()[1]

    def _backend_and_options(self) -> tuple[Any, RpcBackendOptions]:
        return backend_options(
            current_world(),
            AgentOptions(
                transports=self.transports,
                num_worker_threads=self.num_worker_threads,
                rpc_timeout=self.rpc_timeout,
                drop=self._drop,
                delay=self._delay,
                times=self.fail_times,
            ),
        )

    def get_timeout_error_regex(self) -> str:
        """What the error of a call that outlasted its timeout says."""
        return "RPC ran for more than"

    def get_shutdown_error_regex(self) -> str:
        """What the error of a call to an agent that has ended says: it depends on who notices first, and how."""
        return ".*"

    def setup_fault_injection(
        self, faulty_messages: list[str] | None, messages_to_delay: dict[str, float] | None
    ) -> None:
        """The messages that this test's agent drops or delays."""
        self._drop = tuple(faulty_messages or ())
        self._delay = dict(messages_to_delay or {})


def dist_init(
    test: Test | None = None,
    setup_rpc: bool = True,
    clean_shutdown: bool = True,
    faulty_messages: list[str] | None = None,
    messages_to_delay: dict[str, float] | None = None,
) -> Any:
    """Start an agent named ``worker<rank>`` before a method of RpcAgentTestFixture, and end it after.

    Unlike torch's, it ends the agent also when the method raises.
    """
    if test is None:
        return functools.partial(
            dist_init,
            setup_rpc=setup_rpc,
            clean_shutdown=clean_shutdown,
            faulty_messages=faulty_messages,
            messages_to_delay=messages_to_delay,
        )
    method: Callable[..., Any] = test

    @functools.wraps(method)
    def with_agent(self: Any, *args: Any, **kwargs: Any) -> Any:
        from everyrank.rank import current_rank

        self.setup_fault_injection(faulty_messages, messages_to_delay)
        if not setup_rpc:
            return method(self, *args, **kwargs)
        start(current_rank(), f"worker{self.rank}", *self._backend_and_options())
        try:
            result = method(self, *args, **kwargs)
        except BaseException:
            let_go(current_rank())
            raise
        shut_down(current_rank(), graceful=clean_shutdown)
        return result

    return with_agent
