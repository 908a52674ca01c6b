"""Leases: slots that pytest processes of one user share, so that many worlds do not drown one machine.

One file a slot, locked with flock: the kernel frees it when its last holder dies. A world takes all of its
slots at once, behind a turnstile, so that no two worlds each wait for what the other half holds.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from everyrank.errors import MisuseError

#: Ranks mostly wait for each other, so a core carries several.
RANKS_PER_CORE = 4

_POLL = 0.002


def folder() -> Path:
    """The user's own folder for lock files; not the temp folder, since it outlives a run."""
    if named := os.environ.get("EVERYRANK_LEASES"):
        return Path(named)
    for base in (
        os.environ.get("XDG_RUNTIME_DIR"),
        os.environ.get("XDG_CACHE_HOME"),
        os.path.expanduser("~/.cache"),
    ):
        if base and os.path.isdir(base) and os.access(base, os.W_OK):
            return Path(base) / "everyrank-leases"
    home = os.path.expanduser("~")
    if os.path.isdir(home) and os.access(home, os.W_OK):
        return Path(home) / ".cache" / "everyrank-leases"
    return Path(tempfile.gettempdir()) / f"everyrank-leases-{os.getuid()}"


def capacity() -> int:
    """How many ranks run on this machine's cores at a time."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores * RANKS_PER_CORE


class Leases:
    """This process's hold on the slots. Files are opened once and kept."""

    def __init__(self, slots: int, where: Path) -> None:
        self._slots = slots
        self._where = where
        self._files: list[int] = []
        self._turnstile = -1

    def _open(self) -> None:
        self._where.mkdir(mode=0o700, parents=True, exist_ok=True)
        owner = os.stat(self._where)
        if owner.st_uid != os.getuid() or stat.S_IMODE(owner.st_mode) & 0o022:
            raise MisuseError(
                f"{self._where} can be written by others: remove it, or name a folder in EVERYRANK_LEASES"
            )
        self._turnstile = self._lock_file("turnstile")
        self._files = [self._lock_file(f"cpu-{number}") for number in range(self._slots)]

    def _lock_file(self, name: str) -> int:
        return os.open(self._where / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    @contextlib.contextmanager
    def held(self, ranks: int) -> Iterator[None]:
        """Slots for this many ranks, or all there are. Waits for its turn."""
        if self._turnstile < 0:
            self._open()
        wanted = min(ranks, self._slots)
        taken: list[int] = []
        try:
            while not _try(self._turnstile):
                time.sleep(_POLL)
            try:
                while len(taken) < wanted:
                    free = [fd for fd in self._files if fd not in taken and len(taken) < wanted and _take(fd, taken)]
                    if not free:
                        time.sleep(_POLL)
            finally:
                fcntl.flock(self._turnstile, fcntl.LOCK_UN)
            yield
        finally:
            for fd in taken:
                fcntl.flock(fd, fcntl.LOCK_UN)

    def close(self) -> None:
        for fd in (*self._files, self._turnstile):
            if fd >= 0:
                os.close(fd)
        self._files, self._turnstile = [], -1


def _take(fd: int, taken: list[int]) -> bool:
    if _try(fd):
        taken.append(fd)
        return True
    return False


def _try(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
