"""Limits in seconds that the harness sets on its own: what time of a process counts is decided here, for all of them.

A process that wants to run and waits for a core is not slow, its machine has too much to do. So that time does not
count, nor does time in which this process itself came too late to look.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from everyrank import proc_stat

#: A limit is looked at so many times, but at least and at most after this many seconds.
_LOOKS, _SOONEST, _LATEST = 50, 0.05, 1.0
#: Unless it says otherwise, a limit ends after this many times its seconds, or so many seconds more if that is less.
_TIMES, _MORE = 10.0, 600.0


def step(seconds: float) -> float:
    """Return how often a limit of this many seconds is looked at: a process that is later by more is late."""
    return min(max(seconds / _LOOKS, _SOONEST), _LATEST)


class Patience:
    """How much is left of a limit.

    ``waited`` returns how many seconds all those who are waited for have waited for a core so far. Its first value is
    where the count begins. Call ``turn`` before each wait, and do not wait longer than it says.

    However long processes wait for a core, the limit ends after ``most`` seconds of this process.
    """

    def __init__(
        self,
        seconds: float,
        waited: Callable[[], float] = lambda: 0.0,
        most: float | None = None,
        began: float | None = None,
    ) -> None:
        self.seconds = seconds
        self._waited = waited
        self._every = step(seconds)
        self._looked = time.monotonic() if began is None else began
        self._until = self._looked + (min(_TIMES * seconds, seconds + _MORE) if most is None else most)
        self._due = self._looked + min(self._every, seconds)  # when this process wants to look again
        self._count: float | None = None  # of ``waited`` at the last look; the first look is not before it is needed
        self._spent = 0.0

    def turn(self, now: float | None = None) -> float:
        """Return how long the caller may wait now; 0 if the limit is over."""
        now = time.monotonic() if now is None else now
        if now >= self._due:
            self._look(now)
        return max(0.0, self._due - now)

    @property
    def left(self) -> float:
        """How much of the limit was left at the last look."""
        return self.seconds - self._spent

    def _look(self, now: float) -> None:
        before, self._count = self._count, self._waited()
        waited = self._count - before if before is not None else 0.0
        elapsed, late = now - self._looked, now - self._due
        self._spent += elapsed - min(elapsed, max(waited, late))
        self._until += late
        self._looked = now
        self._due = min(now + min(self._every, self.seconds - self._spent), self._until)


@dataclass(frozen=True)
class _Thread:
    ran: int  # nanoseconds
    waited: int  # nanoseconds for a core, without the wait that lasts
    turns: int  # on a core
    is_runnable: bool


class CoreWaits:
    """Counts how long the threads of processes on this host, and of their children, wait for a core.

    The count is of all threads together: one of them may wait for another. Without /proc it stays 0.
    """

    def __init__(
        self, pids: Iterable[int | None], proc: str = "/proc", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._pids = [pid for pid in pids if pid]
        self._proc = proc
        self._clock = clock
        self._threads: dict[str, _Thread] = {}
        self._lasting: dict[str, float] = {}  # by thread: how long the wait lasts that the kernel has not added yet
        self._looked: float | None = None
        self._seconds = 0.0

    def __call__(self) -> float:
        """Return the seconds so far; counted from the first call."""
        now = self._clock()
        if self._looked is None:
            self._threads = dict(self._read())
        else:
            self._note(dict(self._read()), now - self._looked)
        self._looked = now
        return self._seconds

    def _note(self, threads: dict[str, _Thread], elapsed: float) -> None:
        lasting = {}
        for name, thread in threads.items():
            before = self._threads.get(name)
            if before == thread and thread.is_runnable:
                # It has not run since the last look, and wanted to: the kernel adds this wait when it has ended.
                lasting[name] = self._lasting.get(name, 0.0) + elapsed
                self._seconds += elapsed
            else:
                known = before.waited if before is not None else 0
                self._seconds += max(0.0, (thread.waited - known) / 1e9 - self._lasting.get(name, 0.0))
        self._threads, self._lasting = threads, lasting

    def _read(self) -> Iterator[tuple[str, _Thread]]:
        families = [str(pid) for pid in self._pids]
        while families:
            process = families.pop()
            with contextlib.suppress(OSError):  # it is gone, or this is not Linux
                for name in os.listdir(f"{self._proc}/{process}/task"):
                    thread = f"{self._proc}/{process}/task/{name}"
                    with contextlib.suppress(
                        OSError, ValueError
                    ):  # this thread is gone, or the kernel does not count
                        ran, waited, turns = map(int, _text(f"{thread}/schedstat").split())
                        yield name, _Thread(ran, waited, turns, proc_stat.read(f"{thread}/stat").state == "R")
                    with contextlib.suppress(OSError):
                        families += _text(f"{thread}/children").split()


def _text(path: str) -> str:
    with open(path) as file:
        return file.read()
