"""The controller's side of a debugger: one rank at a time is handed to the person at the terminal."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

#: Gives the real terminal back, for as long as somebody debugs.
Terminal = Callable[[], contextlib.AbstractContextManager[None]]


@dataclass(frozen=True)
class DebugOptions:
    """What the person asked for."""

    on_failure: bool  # --pdb
    rank: int | None  # --pdb-rank
    terminal: Terminal


class Desk:
    """Who is being debugged, and for how long."""

    def __init__(self, options: DebugOptions) -> None:
        self.taken_by: int | None = None
        self._options = options
        self._session = contextlib.ExitStack()
        self._since = 0.0

    def ask(self, rank: int, reason: str, pid: int | None) -> bool:
        """Whether this rank may have the terminal. By default the first to fail, and at a breakpoint rank 0."""
        chosen = self._options.rank
        if chosen is None and reason == "breakpoint":
            chosen = 0
        if self.taken_by is not None or chosen not in (None, rank):
            return False
        if reason == "failure" and not self._options.on_failure:
            return False
        self.taken_by = rank
        self._session.enter_context(self._options.terminal())
        self._session.enter_context(_interrupts_go_to(pid))
        self._since = time.monotonic()
        return True

    def leave(self) -> float:
        """The seconds that the person took, which count for no deadline."""
        if self.taken_by is None:
            return 0.0
        self._session.close()
        self.taken_by = None
        return time.monotonic() - self._since


@contextlib.contextmanager
def _interrupts_go_to(pid: int | None) -> Iterator[None]:
    """While a person debugs a rank, Ctrl-C is meant for that rank."""
    if pid is None:
        yield
        return
    before = signal.signal(signal.SIGINT, lambda *_: os.kill(pid, signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
