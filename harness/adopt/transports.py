"""The transports of TensorPipe that RPC agents of adopted tests use.

torch's first choice on one host is shared memory, whose threads poll. If ranks outnumber cores, they poll while the
thread that they wait for has no core: most of the processor time of torch's own tests of RPC is ``sched_yield``. The
transport ``uv`` waits asleep. A test that names transports or channels itself keeps what it names.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterator
from typing import Any

from everyrank.resources.leases import cores


def are_to_sleep(choice: str, size: int) -> bool:
    """Return whether the agents of a world of this size are to use `uv`, given the value of --adopt-transports."""
    return choice == "auto" and size > cores()


@contextlib.contextmanager
def asleep() -> Iterator[None]:
    """In this context, let agents for which nothing else is named use the transport that waits asleep.

    A rank that has not imported torch's RPC yet imports it with the test's file, before the test runs.
    """
    rpc: Any = sys.modules.get("torch.distributed.rpc")
    options = getattr(rpc, "TensorPipeRpcBackendOptions", None)  # it is missing where torch has no TensorPipe
    if options is None:
        yield
        return
    original = options.__init__

    @functools.wraps(original)
    def init(self: Any, **keywords: Any) -> None:
        if keywords.get("_transports") is None and keywords.get("_channels") is None:
            keywords |= {"_transports": ["uv"], "_channels": ["basic"]}
        original(self, **keywords)

    options.__init__ = init
    try:
        yield
    finally:
        options.__init__ = original
