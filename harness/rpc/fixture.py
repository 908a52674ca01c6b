"""The class and the decorator for RPC tests in torch's style: ``RpcAgentTestFixture`` and ``dist_init``."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from everyrank.rank.context import current_rank
from everyrank.rank.world import current_world
from everyrank.rpc.agents import LOCAL_TRANSPORTS, AgentOptions, backend_options, let_go, shut_down, start

if TYPE_CHECKING:
    from torch._C._distributed_rpc import RpcBackendOptions

Test = TypeVar("Test", bound=Callable[..., Any])


class RpcAgentTestFixture:
    """A mixin for test classes, plain or unittest: every method runs on ``world_size`` ranks.

    The names are those of torch's fixture. Methods that need an agent carry ``@dist_init``.
    """

    everyrank_world = True

    #: The number of ranks. A subclass overrides it, by an attribute or a property.
    world_size: int = 4

    transports: tuple[str, ...] | str = LOCAL_TRANSPORTS
    num_worker_threads: int = 8
    rpc_timeout: float = 60.0
    _drop: tuple[str, ...] = ()
    _delay: dict[str, float] = {}

    #: How often a message is dropped before it goes through.
    fail_times: int = 1

    @property
    def rank(self) -> int:
        """This rank's number; a test case that starts its own processes sets it."""
        return int(vars(self)["rank"]) if "rank" in vars(self) else current_world().rank

    @rank.setter
    def rank(self, rank: int) -> None:
        vars(self)["rank"] = rank

    @property
    def worker_id(self) -> int:
        return self.rank

    @property
    def file_name(self) -> str:
        """A path that no rank has used yet, for a store of the test's own."""
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
        """Return a pattern for the error of a call that exceeded its timeout."""
        return "RPC ran for more than"

    def get_shutdown_error_regex(self) -> str:
        """Return a pattern for the error of a call to an ended agent; it depends on which rank notices first."""
        return ".*"

    def setup_fault_injection(
        self, faulty_messages: list[str] | None, messages_to_delay: dict[str, float] | None
    ) -> None:
        """Set the messages that this test's agent drops or delays."""
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

    Unlike torch's decorator, it ends the agent even if the method raises.
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
