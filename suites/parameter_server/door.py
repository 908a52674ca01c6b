"""The door of a server, through which reports come that were made on other workers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch.distributed.rpc as rpc


class Door:
    """The server as RPC finds it: where each report comes on a thread of its own, whenever that is.

    Reports come in one at a time, so that a law which is not about two of them at the same instant never depends on
    whether two met; one that is lets them meet, and says what happens ``within`` a report. A server that blocks has
    all of its reports inside at once, or a round would never be full.
    """

    def __init__(self, server: Any, blocks: bool) -> None:
        self._server = server
        self._alone = threading.RLock()
        self.within: Callable[[], AbstractContextManager[Any]] = nullcontext if blocks else lambda: self._alone
        self._awaited: dict[int, threading.Event] = {}

    def awaits(self, trainer: int, taken: threading.Event) -> None:
        """Sets the event when the server has taken this trainer's next report, or has refused it."""
        self._awaited[trainer] = taken

    def update_and_fetch(self, gradients: Sequence[Any], trainer: int) -> Any:
        try:
            with self.within():
                return self._server.update_and_fetch(gradients, trainer)
        finally:
            if (taken := self._awaited.pop(trainer, None)) is not None:
                taken.set()


class AsynchronousDoor(Door):
    """The same for a server whose method is decorated with ``async_execution``: RPC asks its class for that."""

    update_and_fetch = rpc.functions.async_execution(Door.update_and_fetch)


def door_of(server: Any, blocks: bool) -> Door:
    method = getattr(type(server), "update_and_fetch", None)
    asynchronous = hasattr(method, "_wrapped_async_rpc_function")  # what RPC looks for, too
    return (AsynchronousDoor if asynchronous else Door)(server, blocks)
