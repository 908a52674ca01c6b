"""Who holds the places that a world waits for: noted in their lock files, and put into words for whoever waits.

A note counts only while its file is locked and the process that it names lives: what a dead holder wrote is never
believed. It is made and taken back under the lock, so it changes nothing about who holds what.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

#: More than a note ever has.
_MOST = 4096


@dataclass(frozen=True)
class Holder:
    """A pytest process that holds places for a test."""

    pid: int
    born: int  # when the process started, as the kernel counts: another may get its number
    run: int  # the pid of the pytest that a person started
    since: float  # on the wall clock
    file: str  # the test's

    def describe(self, now: float) -> str:
        return f"pytest {self.pid}, {self.file}, for {max(0, round(now - self.since))} s"


def this_process(run: int, file: str) -> Holder:
    return Holder(os.getpid(), _born(os.getpid()), run, time.time(), file)


def note(fds: Iterable[int], holder: Holder) -> None:
    """Write into these files, whose locks this process has, who holds them."""
    text = msgspec.json.encode(holder)
    for fd in fds:
        with contextlib.suppress(OSError):  # a full disk is no reason not to run
            os.ftruncate(fd, 0)
            os.pwrite(fd, text, 0)


def read(path: Path) -> Holder | None:
    """Who holds a file that is locked, as far as that can be believed."""
    with contextlib.suppress(OSError, msgspec.DecodeError), path.open("rb") as file:
        holder = msgspec.json.decode(file.read(_MOST), type=Holder)
        if _born(holder.pid) == holder.born:
            return holder
    return None


def describe(holders: list[Holder | None], places: int) -> str:
    """``8 of 8 places are held by pytest 4711, test_hold.py, for 64 s``, for the holders of all that are held."""
    if not holders:
        return f"none of {places} places is held any more"
    now = time.time()
    counts = Counter(
        holder.describe(now) if holder else "a process that does not say who it is" for holder in holders
    )
    held = f"{len(holders)} of {places} places are held"
    if len(counts) == 1:
        return f"{held} by {next(iter(counts))}"
    return f"{held}: " + "; ".join(f"{count} by {who}" for who, count in counts.most_common())


def run_of(config: pytest.Config) -> int:
    """The pid of the pytest that a person started, as far as it is known in a worker of pytest-xdist."""
    return int(getattr(config, "workerinput", {}).get("everyrank_parent", os.getpid()))


def print_line(config: pytest.Config, text: str) -> None:
    """Tell the person at the terminal, now."""
    line = f"everyrank: {text}"
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and not hasattr(config, "workerinput"):
        reporter.ensure_newline()
        reporter.write_line(line, yellow=True)
        reporter.flush()
        return
    # A worker of pytest-xdist has no terminal, but its stderr is that of the pytest that started it.
    with contextlib.suppress(OSError):
        os.write(2, f"\n{line}\n".encode(errors="replace"))


def _born(pid: int) -> int:
    """In clock ticks since the machine started; 0 for a process that is gone, or where the kernel does not tell."""
    if sys.platform != "linux":
        return 0 if is_gone(pid) else 1
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[19])
    return 0


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False
