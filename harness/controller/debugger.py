"""The controller's side of a debugger: it gives the terminal to one rank at a time."""

from __future__ import annotations

import contextlib
import signal
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
    """The rank that has the terminal."""

    def __init__(self, options: DebugOptions) -> None:
        self.rank: int | None = None
        self._options = options
        self._session = contextlib.ExitStack()

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
        return True

    def leave(self) -> None:
        """Take the terminal back. Limits do not count the time of the person: nobody has looked at them meanwhile."""
        if self.rank is not None:
            self._session.close()
            self.rank = None


@contextlib.contextmanager
def _redirect_interrupts(interrupt: Callable[[], None]) -> Iterator[None]:
    """Send Ctrl-C to the rank while a person debugs it."""
    before = signal.signal(signal.SIGINT, lambda *_: interrupt())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
