"""The controller's side of a debugger: it gives the terminal to one rank at a time."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

#: Ends pytest's capturing while a person debugs.
BorrowTerminal = Callable[[], contextlib.AbstractContextManager[None]]


@dataclass(frozen=True)
class DebugOptions:
    """The options of the command line for debugging."""

    on_failure: bool  # --pdb
    rank: int | None  # --pdb-rank
    terminal: BorrowTerminal


class Debugger:
    """The rank that has the terminal, and since when."""

    def __init__(self, options: DebugOptions) -> None:
        self.rank: int | None = None
        self._options = options
        self._session = contextlib.ExitStack()
        self._since = 0.0

    def ask(self, rank: int, reason: str, interrupt: Callable[[], None]) -> bool:
        """Return whether this rank gets the terminal: by default the first that fails, and rank 0 at a breakpoint."""
        chosen = self._options.rank
        if chosen is None and reason == "breakpoint":
            chosen = 0
        if self.rank is not None or chosen not in (None, rank):
            return False
        if reason == "failure" and not self._options.on_failure:
            return False
        self.rank = rank
        self._session.enter_context(self._options.terminal())
        self._session.enter_context(_redirect_interrupts(interrupt))
        self._since = time.monotonic()
        return True

    def leave(self) -> float:
        """Take the terminal back. Return the seconds that the person took, which count for no deadline."""
        if self.rank is None:
            return 0.0
        self._session.close()
        self.rank = None
        return time.monotonic() - self._since


@contextlib.contextmanager
def _redirect_interrupts(interrupt: Callable[[], None]) -> Iterator[None]:
    """Send Ctrl-C to the rank while a person debugs it."""
    before = signal.signal(signal.SIGINT, lambda *_: interrupt())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
