"""What Linux states of a process, or of one of its threads, in a line of /proc: ``man 5 proc_pid_stat``."""

from __future__ import annotations

import contextlib
import signal

#: The flag of an exiting process, and the pending signal of a killed one.
_EXITING, _SIGKILL = 0x4, 1 << (signal.SIGKILL - 1)


class Stat:
    """The state of a process or a thread at one time."""

    def __init__(self, line: str) -> None:
        """Parse a line. Its second field is a name, which may have any character."""
        self.pid = int(line.split()[0])
        self.state, *self._rest = line.rpartition(")")[2].split()  # the state is one letter

    @property
    def parent(self) -> int:
        return int(self._rest[0])

    @property
    def ticks(self) -> int:
        """The processor time that it has used."""
        return int(self._rest[10]) + int(self._rest[11])

    @property
    def born(self) -> int:
        """When it started, in ticks since the machine's start."""
        return int(self._rest[18])

    @property
    def has_ended(self) -> bool:
        return self.state in "ZX"

    @property
    def is_ending(self) -> bool:
        """Whether it has ended or was killed."""
        return self.has_ended or bool(int(self._rest[5]) & _EXITING) or bool(int(self._rest[27]) & _SIGKILL)

    @property
    def is_stopped(self) -> bool:
        """Whether a signal or a tracer has stopped it."""
        return self.state in "Tt"

    @property
    def is_busy(self) -> bool:
        """Whether it runs, wants to, or waits for a disk."""
        return self.state in "RD"


def find(pid: int | str | None) -> Stat | None:
    """Return what is known of a process; None if it is gone, or if this is not Linux."""
    with contextlib.suppress(OSError):
        return read(f"/proc/{pid}/stat")
    return None


def read(path: str) -> Stat:
    """Read such a file. Raise OSError if there is none."""
    with open(path, errors="replace") as file:
        return Stat(file.read())
