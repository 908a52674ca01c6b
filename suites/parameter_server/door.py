"""The door of a server: it takes the reports that other workers send."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch.distributed.rpc as rpc


class Door:
    """The server as RPC sees it. RPC calls it for each report on another thread, at any time.

    The door lets one report in at a time, so that a law never depends on whether two reports met by chance. A law
    about two reports at the same time sets ``within``, the context of each report, and lets them meet. A server that
    blocks gets all reports of a round at once, or the round would never be full.
    """

    def __init__(self, server: Any, blocks: bool) -> None:
        self._server = server
        self._alone = threading.RLock()
        self.within: Callable[[], AbstractContextManager[Any]] = nullcontext if blocks else lambda: self._alone
        self._awaited: dict[int, threading.Event] = {}

    def awaits(self, trainer: int, taken: threading.Event) -> None:
        """Set the event when the server has taken or refused this trainer's next report."""
        self._awaited[trainer] = taken

    def update_and_fetch(self, gradients: Sequence[Any], trainer: int) -> Any:
        try:
            with self.within():
                return self._server.update_and_fetch(gradients, trainer)
        finally:
            if (taken := self._awaited.pop(trainer, None)) is not None:
                taken.set()


class AsynchronousDoor(Door):
    """A door for a server whose method is decorated with ``async_execution``: RPC looks for that in the class."""

    update_and_fetch = rpc.functions.async_execution(Door.update_and_fetch)


def door_of(server: Any, blocks: bool) -> Door:
    method = getattr(type(server), "update_and_fetch", None)
    asynchronous = hasattr(method, "_wrapped_async_rpc_function")  # RPC looks for the same
    return (AsynchronousDoor if asynchronous else Door)(server, blocks)
