"""Note in the lock files of slots who holds them, and describe the holders to a person who waits.

A note counts only while its file is locked and the process that it names lives: the note of a dead holder is ignored.
It is written and removed under the lock, so it does not affect who holds the slots.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from everyrank import proc_stat

#: The most bytes that are read of a note; none is as long.
_MOST = 4096
#: The most characters of a test's name in a note.
_LONGEST = 500


@dataclass(frozen=True)
class Holder:
    """A pytest process that holds slots for a test."""

    pid: int
    born: int  # when the process started, by the kernel's clock: another process may get its pid
    run: int  # the pid of the pytest that a person started
    since: float  # by the wall clock
    test: str  # as pytest names it

    def describe(self, now: float) -> str:
        return f"pytest {self.pid}, {self.test.partition('::')[0]}, for {max(0, round(now - self.since))} s"


def this_process(run: int, test: str) -> Holder:
    pid = os.getpid()
    return Holder(
        pid, _own_birth(pid), run, time.time(), test[:_LONGEST].encode("utf-8", "backslashreplace").decode()
    )


def note(fds: Iterable[int], holder: Holder) -> None:
    """Write the holder into these files, whose locks this process holds."""
    text = msgspec.json.encode(holder)
    for fd in fds:
        with contextlib.suppress(OSError):  # a full disk must not stop the test
            os.ftruncate(fd, 0)
            os.pwrite(fd, text, 0)


def read(path: Path) -> Holder | None:
    """Return the holder that a locked file names, if that process still lives."""
    with contextlib.suppress(OSError, msgspec.DecodeError), path.open("rb") as file:
        holder = msgspec.json.decode(file.read(_MOST), type=Holder)
        if born(holder.pid) == holder.born:
            return holder
    return None


def describe(holders: list[Holder | None], slots: int) -> str:
    """Describe the holders: ``8 of 8 slots are held by pytest 4711, test_hold.py, for 64 s``."""
    if not holders:
        return f"none of {slots} slots is held any more"
    now = time.time()
    counts = Counter(holder.describe(now) if holder else "an unknown process" for holder in holders)
    held = f"{len(holders)} of {slots} slots are held"
    if len(counts) == 1:
        return f"{held} by {next(iter(counts))}"
    return f"{held}: " + "; ".join(f"{count} by {holder}" for holder, count in counts.most_common())


def run_of(config: pytest.Config) -> int:
    """Return the pid of the pytest that a person started, if a worker of pytest-xdist knows it; otherwise our own."""
    return int(getattr(config, "workerinput", {}).get("everyrank_parent", os.getpid()))


def print_line(config: pytest.Config, text: str) -> None:
    """Print a line at the terminal at once."""
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


def born(pid: int) -> int:
    """Return when a process started, in clock ticks since the machine's start; 0 if it is gone.

    Without /proc, return 1 for every process that lives.
    """
    if sys.platform != "linux":
        return 0 if is_gone(pid) else 1
    stat = proc_stat.find(pid)
    return stat.born if stat is not None else 0


_own_birth = functools.cache(born)


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False
