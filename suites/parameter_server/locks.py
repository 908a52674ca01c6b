"""Notice that a thread waits for a lock of the server, instead of waiting for a fixed time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class WatchedLock:
    """A lock that calls ``waits`` in a thread that has to wait for it."""

    def __init__(self, lock: Any, waits: Callable[[], None]) -> None:
        self._lock, self._waits = lock, waits

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lock, name)

    def acquire(self, *args: Any, **kwargs: Any) -> bool:
        if self._lock.acquire(False):
            return True
        self._waits()
        return bool(self._lock.acquire(*args, **kwargs))

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class Locks:
    """The locks that a server has as attributes. From now on they are watched."""

    def __init__(self, server: Any) -> None:
        self._arrived: dict[int, threading.Event] = {}
        for name, value in list(getattr(server, "__dict__", {}).items()):
            if all(hasattr(value, method) for method in ("acquire", "release", "__enter__")):
                setattr(server, name, WatchedLock(value, self._waits))

    def calling(self, call: Callable[[], Any], arrived: threading.Event) -> Any:
        """Make this call; set the event when the call has returned, or when it has to wait for one of the locks."""
        self._arrived[threading.get_ident()] = arrived
        try:
            return call()
        finally:
            del self._arrived[threading.get_ident()]
            arrived.set()

    def _waits(self) -> None:
        arrived = self._arrived.get(threading.get_ident())
        if arrived is not None:
            arrived.set()
