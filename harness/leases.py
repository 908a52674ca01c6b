"""Leases: slots that pytest processes of one user share, so that many worlds do not drown one machine.

One file a slot, locked with flock: the kernel frees it when its last holder dies. A world takes all of its
slots at once, behind a turnstile, so that no two worlds each wait for what the other half holds. ``gpus.py`` is the
same for GPUs.
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

from everyrank import holders
from everyrank.errors import MisuseError

#: Ranks mostly wait for each other, so a core carries several.
RANKS_PER_CORE = 4

#: Who waits longer than this for places says so, and who holds them.
PATIENCE = 5.0
#: And this long, where all are held by other workers of the same run.
OWN_PATIENCE = 60.0

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


class LockFile:
    """A file whose lock is the lease. It may be removed by whoever holds its lock, and is then made again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fd = -1

    def take(self, shared: bool = False) -> bool:
        """Try to lock it, alone or with others that share."""
        how = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        while True:
            if self.fd < 0:
                self.fd = _open(self.path)
            if not _try(self.fd, how):
                return False
            if os.fstat(self.fd).st_nlink:
                return True
            # Somebody removed it between our opening and our locking: its lock means nothing to others.
            self.close()

    def let_go(self) -> None:
        """Unlock. Not for a lease that other processes hold through the same open file: it ends with the last."""
        fcntl.flock(self.fd, fcntl.LOCK_UN)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1

    def remove(self) -> None:
        """Leave no file behind, unless somebody holds it."""
        with contextlib.suppress(OSError):
            if self.take():
                os.unlink(self.path)
        self.close()


def _open(path: Path) -> int:
    while True:
        try:
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:  # another run has just removed the folder, since it was empty
            prepare(path.parent)


def _try(fd: int, how: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def prepare(where: Path) -> None:
    """Make the folder, or make sure that it is the user's own."""
    where.mkdir(mode=0o700, parents=True, exist_ok=True)
    owner = os.stat(where)
    if owner.st_uid != os.getuid() or stat.S_IMODE(owner.st_mode) & 0o022:
        raise MisuseError(f"{where} can be written by others: remove it, or name a folder in EVERYRANK_LEASES")


def tidy(where: Path, files: Iterable[LockFile]) -> None:
    """Remove these lock files, as far as nobody holds them, and the folder once it is empty, if it is not one that
    somebody gave us."""
    for file in files:
        file.remove()
    if os.environ.get("EVERYRANK_LEASES") == str(where):
        return
    with contextlib.suppress(OSError):
        where.rmdir()


class Leases:
    """This process's hold on the slots. Files are opened once and kept."""

    def __init__(self, slots: int, where: Path, tell: Callable[[str], None] | None = None, run: int = 0) -> None:
        self._where = where
        self._turnstile = LockFile(where / "turnstile")
        self._files = [LockFile(where / f"cpu-{number}") for number in range(slots)]
        self._ready = False
        self._tell = tell
        self._run = run or os.getpid()

    @contextlib.contextmanager
    def held(self, ranks: int, test: str = "a test") -> Iterator[str]:
        """Slots for this many ranks, or all there are. Waits for its turn; hands over what a long wait was for."""
        if not self._ready:
            prepare(self._where)
            self._ready = True
        wanted = min(ranks, len(self._files))
        wait = _Wait(self, f"{test} waits for {wanted} place{'s' if wanted > 1 else ''}")
        taken: list[LockFile] = []
        try:
            while not self._turnstile.take():
                wait.go_on(taken)
            try:
                while len(taken) < wanted:
                    before = len(taken)
                    for file in self._files:
                        if len(taken) < wanted and file not in taken and file.take():
                            taken.append(file)
                    if len(taken) == before:
                        wait.go_on(taken)
            finally:
                self._turnstile.let_go()
            holders.note([file.fd for file in taken], holders.this_process(self._run, test.partition("::")[0]))
            yield wait.summary()
        finally:
            for file in taken:
                os.ftruncate(file.fd, 0)
                file.let_go()

    def tell(self, waiting: str, waited: float, taken: list[LockFile]) -> str:
        """Say what a world waits for. Nothing yet, where the workers of this very run take turns: that is how a run
        goes, unless it lasts."""
        found = [holders.read(file.path) for file in self._files if file not in taken and _is_locked(file.path)]
        ours = all(holder is not None and holder.run == self._run for holder in found)
        if ours and waited < OWN_PATIENCE:
            return ""
        text = f"{waiting}: {holders.describe(found, len(self._files))}"
        if self._tell is not None:
            self._tell(text)
        return text

    def close(self) -> None:
        if self._ready:
            tidy(self._where, [*self._files, self._turnstile])


class _Wait:
    """One wait for places, which is told of once it has lasted."""

    def __init__(self, leases: Leases, waiting: str) -> None:
        self._leases = leases
        self._waiting = waiting
        self._began = time.monotonic()
        self._look_at = self._began + PATIENCE
        self._told = ""

    def go_on(self, taken: list[LockFile]) -> None:
        now = time.monotonic()
        if not self._told and now >= self._look_at:
            self._told = self._leases.tell(self._waiting, now - self._began, taken)
            self._look_at = now + 1
        time.sleep(_POLL)

    def summary(self) -> str:
        return f"{self._told} (it waited {time.monotonic() - self._began:.0f} s)" if self._told else ""


def _is_locked(path: Path) -> bool:
    """Whether somebody holds it. Looks without waiting, through an open file of its own, and lets go at once."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not _try(fd, fcntl.LOCK_SH)
    finally:
        os.close(fd)
