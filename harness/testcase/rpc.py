"""Helpers for tests of RPC, under torch's names."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
import torch.distributed.rpc as torch_rpc
from everyrank.rpc.agents import wait_until
from everyrank.rpc.fixture import RpcAgentTestFixture as RpcAgentTestFixture
from everyrank.rpc.fixture import dist_init as dist_init
from torch._C import _distributed_rpc as core

rpc: Any = torch_rpc

FILE_SCHEMA = "file://"
INIT_METHOD_TEMPLATE = FILE_SCHEMA + "{file_name}"

#: The messages that the faulty agent drops, and those that it delays, in seconds, if a test names none.
retryable_message_types = [
    "RREF_FORK_REQUEST",
    "RREF_CHILD_ACCEPT",
    "RREF_USER_DELETE",
    "CLEANUP_AUTOGRAD_CONTEXT_REQ",
]
default_messages_to_delay = {"PYTHON_CALL": 1.5, "SCRIPT_CALL": 1.5}


class TensorPipeRpcAgentTestFixture(RpcAgentTestFixture):
    """Uses the same agent as RpcAgentTestFixture."""


class FaultyRpcAgentTestFixture(RpcAgentTestFixture):
    """Uses an agent that drops and delays messages, even if a test names none."""

    fail_times = 3

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.setup_fault_injection(None, None)

    def setup_fault_injection(
        self, faulty_messages: list[str] | None, messages_to_delay: dict[str, float] | None
    ) -> None:
        self.messages_to_fail = retryable_message_types if faulty_messages is None else faulty_messages
        self.messages_to_delay = default_messages_to_delay if messages_to_delay is None else messages_to_delay
        super().setup_fault_injection(self.messages_to_fail, self.messages_to_delay)

    def get_shutdown_error_regex(self) -> str:
        return "Exception in thread pool task|Connection reset by peer|Connection closed by peer"


def noop() -> None:
    """Do nothing; for calls to another worker."""


def worker_name(rank: int) -> str:
    return f"worker{rank}"


def initialize_pg(init_method: str, rank: int, world_size: int) -> None:
    """Open the default group with gloo, unless a group is open."""
    if not dist.is_initialized():
        dist.init_process_group("gloo", init_method=init_method, rank=rank, world_size=world_size)


def wait_until_node_failure(rank: int, expected_error_regex: str = ".*") -> str:
    """Call a worker until a call fails with this error; return the error's text."""
    while True:
        try:
            rpc.rpc_sync(worker_name(rank), noop, args=())
            time.sleep(0.1)
        except Exception as error:
            if re.search(expected_error_regex, str(error)):
                return str(error)


def wait_until_pending_futures_and_users_flushed(timeout: int = 20) -> None:
    """Wait until every RRef of this worker is known to its owner."""

    def flushed() -> bool:
        counts = core._rref_context_get_debug_info()
        return counts["num_pending_futures"] == "0" and counts["num_pending_users"] == "0"

    _wait(flushed, timeout, "futures or users of RRefs are still pending")


def get_num_owners_and_forks() -> tuple[str, str]:
    counts = core._rref_context_get_debug_info()
    return counts["num_owner_rrefs"], counts["num_forks"]


def wait_until_owners_and_forks_on_rank(num_owners: int, num_forks: int, rank: int, timeout: int = 20) -> None:
    """Wait until a worker owns this many RRefs, with this many forks."""
    expected = (str(num_owners), str(num_forks))
    counts: tuple[str, str] = ("", "")

    def reached() -> bool:
        nonlocal counts
        counts = tuple(rpc.rpc_sync(worker_name(rank), get_num_owners_and_forks, args=(), timeout=5))
        return counts == expected

    _wait(reached, timeout, lambda: f"rank {rank} has {counts[0]} owners and {counts[1]} forks, not {expected}")


def _wait(holds: Callable[[], bool], timeout: float, problem: str | Callable[[], str]) -> None:
    wait_until(holds, timeout)
    if not holds():
        raise ValueError(f"after {timeout} s, {problem() if callable(problem) else problem}")
