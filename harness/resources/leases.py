"""Leases: slots that the pytest processes of one user share, so that many worlds do not overload one machine.

Each slot is a file, locked with flock: the kernel unlocks it when its last holder dies. A world takes all of its
slots at once, behind a turnstile, so that no two worlds hold half of their slots and wait for each other.
``gpu_leases.py`` does the same for GPUs.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from everyrank.errors import MisuseError
from everyrank.model.counts import count
from everyrank.resources import holders

#: Ranks mostly wait for each other, so that one core can run several.
RANKS_PER_CORE = 4

#: After waiting this many seconds for slots, a test reports it, and who holds them.
PATIENCE = 5.0
#: The same, if workers of the same run hold all of them.
OWN_PATIENCE = 60.0

_POLL = 0.002


def folder() -> Path:
    """Return the user's own folder for lock files. It outlives a run, so it is not a temp folder if possible."""
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


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def capacity() -> int:
    """Return how many ranks may run on this machine's cores at a time."""
    return cores() * RANKS_PER_CORE


class LockFile:
    """A file whose lock is the lease. The holder of the lock may remove it; the next to take it makes it again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fd = -1

    def take(self, shared: bool = False) -> bool:
        """Try to lock the file, alone or together with others that share it. Return whether that worked."""
        operation = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        while True:
            if self.fd < 0:
                self.fd = _open(self.path)
            if not _try(self.fd, operation):
                return False
            if os.fstat(self.fd).st_nlink:
                return True
            # Another process removed the file between our open and our lock: its lock is worthless.
            self.close()

    def let_go(self) -> None:
        """Unlock the file. Other processes that hold the same open file lose the lock, too."""
        fcntl.flock(self.fd, fcntl.LOCK_UN)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1

    def remove(self) -> None:
        """Remove the file, unless another process holds its lock."""
        with contextlib.suppress(OSError):
            if self.take():
                os.unlink(self.path)
        self.close()


def _open(path: Path) -> int:
    while True:
        try:
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except FileNotFoundError:  # another run has just removed the empty folder
            prepare(path.parent)


def _try(fd: int, operation: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.flock(fd, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def prepare(folder: Path) -> None:
    """Make the folder, or check that it belongs to the user alone."""
    advice = "remove it, or name a folder in EVERYRANK_LEASES"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700, parents=True)
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except NotADirectoryError:  # also for a link, which another user may have made in a temp folder
        raise MisuseError(f"{folder} is {'a link' if folder.is_symlink() else 'no folder'}: {advice}") from None
    try:
        owner = os.fstat(opened)
    finally:
        os.close(opened)
    if owner.st_uid != os.getuid() or stat.S_IMODE(owner.st_mode) & 0o022:
        raise MisuseError(f"{folder} can be written by others: {advice}")


def tidy(folder: Path, files: Iterable[LockFile]) -> None:
    """Remove these lock files, unless they are held, and the folder, if it is empty and not named by the user."""
    for file in files:
        file.remove()
    if os.environ.get("EVERYRANK_LEASES") == str(folder):
        return
    with contextlib.suppress(OSError):
        folder.rmdir()


class Leases:
    """The slots of this process. Their files are opened once and stay open."""

    def __init__(self, slots: int, folder: Path, notify: Callable[[str], None] | None = None, run: int = 0) -> None:
        self._folder = folder
        self._turnstile = LockFile(folder / "turnstile")
        self._files = [LockFile(folder / f"cpu-{number}") for number in range(slots)]
        self._ready = False
        self._notify = notify
        self._run = run or os.getpid()

    @contextlib.contextmanager
    def held(self, ranks: int, test: str = "a test") -> Iterator[str]:
        """Hold slots for this many ranks, or all slots if there are fewer. Yield the report of a long wait, or ""."""
        if not self._ready:
            prepare(self._folder)
            self._ready = True
        slots = min(ranks, len(self._files))
        wait = _Wait(self, f"{test} waits for {count(slots, 'slot')}")
        taken: list[LockFile] = []
        try:
            while not self._turnstile.take():
                wait.pause(taken)
            try:
                while len(taken) < slots:
                    before = len(taken)
                    for file in self._files:
                        if len(taken) < slots and file not in taken and file.take():
                            taken.append(file)
                    if len(taken) == before:
                        wait.pause(taken)
            finally:
                self._turnstile.let_go()
            holders.note([file.fd for file in taken], holders.this_process(self._run, test))
            yield wait.summary()
        finally:
            for file in taken:
                os.ftruncate(file.fd, 0)
                file.let_go()

    def report_wait(self, waiting: str, waited: float, taken: list[LockFile]) -> str:
        """Report what a world waits for, and return the report.

        If workers of this run hold all slots, they only take turns: then report nothing until the wait is long.
        """
        others = [holders.read(file.path) for file in self._files if file not in taken and _is_locked(file.path)]
        take_turns = all(holder is not None and holder.run == self._run for holder in others)
        if take_turns and waited < OWN_PATIENCE:
            return ""
        text = f"{waiting}: {holders.describe(others, len(self._files))}"
        if self._notify is not None:
            self._notify(text)
        return text

    def close(self) -> None:
        if self._ready:
            tidy(self._folder, [*self._files, self._turnstile])


class _Wait:
    """A wait for slots, which is reported if it is long."""

    def __init__(self, leases: Leases, waiting: str) -> None:
        self._leases = leases
        self._waiting = waiting
        self._began = time.monotonic()
        self._look_at = self._began + PATIENCE
        self._report = ""

    def pause(self, taken: list[LockFile]) -> None:
        now = time.monotonic()
        if not self._report and now >= self._look_at:
            self._report = self._leases.report_wait(self._waiting, now - self._began, taken)
            self._look_at = now + 1
        time.sleep(_POLL)

    def summary(self) -> str:
        return f"{self._report} (it waited {time.monotonic() - self._began:.0f} s)" if self._report else ""


def _is_locked(path: Path) -> bool:
    """Return whether another process or open file holds the lock. It tries a shared lock without waiting."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        return not _try(fd, fcntl.LOCK_SH)
    finally:
        os.close(fd)
