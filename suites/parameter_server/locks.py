"""Knowing that a thread waits for a lock of the server, so that nothing has to wait for how long something takes."""

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
    """The locks that a server has as attributes, watched from here on."""

    def __init__(self, server: Any) -> None:
        self._in_place: dict[int, threading.Event] = {}
        for name, value in list(getattr(server, "__dict__", {}).items()):
            if all(hasattr(value, method) for method in ("acquire", "release", "__enter__")):
                setattr(server, name, WatchedLock(value, self._waits))

    def calling(self, call: Callable[[], Any], in_place: threading.Event) -> Any:
        """Make this call; sets the event when it has returned, and also when it has to wait for one of the locks."""
        self._in_place[threading.get_ident()] = in_place
        try:
            return call()
        finally:
            del self._in_place[threading.get_ident()]
            in_place.set()

    def _waits(self) -> None:
        in_place = self._in_place.get(threading.get_ident())
        if in_place is not None:
            in_place.set()
