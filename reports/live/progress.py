"""Draw the live line of a long run: its progress, in the last row of the terminal, below pytest's output.

The last row is removed from the part of the screen that scrolls, as package managers do: pytest writes its own line
piece by piece, so a line that is drawn over it with a carriage return would garble it. Nothing is drawn if the output
goes to a file or a pipe, under a debugger, or under ``-q``.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from typing import Any

import pytest
from everyrank.model.counts import count
from everyrank.reports.live.tally import Tally

#: Seconds after which the line is drawn. A shorter run needs none.
AFTER = 3.0
#: Seconds between two drawings.
_EACH = 0.1
#: A screen with fewer rows shows no line.
_ROWS = 8


class ProgressLine:
    """The live line. Call ``update`` after each test and ``close`` at the end."""

    def __init__(self, terminal: Terminal, clock: Callable[[], float] = time.monotonic) -> None:
        self._terminal = terminal
        self._clock = clock
        self._began = clock()
        self._next = self._began + AFTER

    def update(self, tally: Tally, expected: int, worlds: int) -> None:
        """Draw the line after a test, if it is time to."""
        now = self._clock()
        if now >= self._next:
            self._next = now + _EACH
            self._terminal.draw(text(tally, expected, worlds, now - self._began))

    def close(self) -> None:
        """Give the row back."""
        self._terminal.close()


def text(tally: Tally, expected: int, worlds: int, seconds: float) -> str:
    """Return the line: cases done, cases that are not green, worlds up, the rate, the time left."""
    done = tally.total
    rate = done / seconds if seconds else 0.0
    parts = [f"everyrank: {done:,} of {expected:,} ({done / max(expected, 1):.0%})"]
    parts += [f"{tally.red:,} not green"] if tally.red else []
    parts.append(f"{count(worlds, 'world')} up")
    parts.append(f"{rate:.1f} a second")
    if rate:
        parts.append(f"{duration((expected - done) / rate)} left")
    return ", ".join(parts)


def duration(seconds: float) -> str:
    """``0:07``, ``3:40``, ``1:02:03``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class Terminal:
    """The last row of a terminal, drawn with DEC's control sequences, which all terminals know."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._rows = 0  # as of the last drawing; 0: the row has not been taken

    def draw(self, line: str) -> None:
        """Show the line in place of the one before."""
        # A terminal that was closed meanwhile must not end the tests.
        with contextlib.suppress(OSError):
            self._draw(line)

    def _draw(self, line: str) -> None:
        size = os.get_terminal_size(self._file)
        if size.lines < _ROWS:
            self.give_back()
            return
        taking = ""
        if size.lines != self._rows:
            # One line down and up again scrolls up the text of the last row. Then set the rows that scroll.
            taking = ("\x1bD\x1b[A" if not self._rows else "") + f"\x1b7\x1b[1;{size.lines - 1}r\x1b8"
            self._rows = size.lines
        shown = line[: size.columns - 1]
        self._write(f"{taking}\x1b7\x1b[{size.lines};1H\x1b[2K{shown}\x1b8")

    def give_back(self) -> None:
        """Let the whole screen scroll again."""
        if self._rows:
            with contextlib.suppress(OSError):
                self._write(f"\x1b7\x1b[r\x1b[{self._rows};1H\x1b[2K\x1b8")
        self._rows = 0

    def close(self) -> None:
        self.give_back()
        os.close(self._file)

    def _write(self, text: str) -> None:
        rest = text.encode()
        while rest:
            rest = rest[os.write(self._file, rest) :]


def terminal(config: pytest.Config) -> Terminal | None:
    """Return the terminal that pytest prints to; None without a terminal or under ``-q``."""
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or not reporter.isatty() or config.get_verbosity() < 0:
        return None
    if config.getoption("usepdb", False) or config.getoption("trace", False):
        return None
    if os.environ.get("TERM", "dumb") == "dumb":
        return None
    try:
        # Not stdout: pytest captures it while tests run.
        return Terminal(os.open("/dev/tty", os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return None
