"""The run's folder, as a process on some host has it."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import select
import signal
import socket
import stat
import tempfile
import warnings
from pathlib import Path

from everyrank.errors import MisuseError
from everyrank.launch.keeper import own_session, pidfd, remove_traces

#: A file in the controller's folder by which a process knows that it sees the same folder.
_MARK = "controller"
#: A file in a host's own folder that each of its keepers locks as long as it needs the folder.
_USED = "used"


def boot() -> str:
    """Return what differs between machines, between two starts of one, and between containers on one."""
    with contextlib.suppress(OSError):
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    return socket.gethostname()


def mark(folder: str, secret: bytes) -> None:
    """Leave a mark in the controller's folder."""
    Path(folder, _MARK).write_text(_mark_of(secret))


class RunFolder:
    """The controller's folder if this process sees it; otherwise one that the keepers of this host have together.

    ``id`` differs between such folders. For the controller's it is "".
    """

    def __init__(self, controllers: str, secret: bytes) -> None:
        self.path, self.id = controllers, ""
        self._lock: int | None = None
        with contextlib.suppress(OSError):
            if Path(controllers, _MARK).read_text() == _mark_of(secret):
                return
        self.path = _own(controllers)
        self._lock = _use(self.path)
        info = os.stat(self.path)
        self.id = f"{socket.gethostname()} {boot()} {info.st_dev} {info.st_ino}"

    def leave(self, controller_is_gone: bool) -> None:
        """Remove the folder if nobody is left who would do it."""
        if not self.id and controller_is_gone:
            remove_traces(self.path)
        if self._lock is None:
            return
        with contextlib.suppress(BlockingIOError):  # another keeper of this host still needs it
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_traces(self.path)
        os.close(self._lock)
        self._lock = None


class Guard:
    """A fork that removes the controller's folder once the controller has ended, whatever ended it.

    Under Ray the controller has no keeper of its own on its host, and its actors may end before it: if the head of a
    cluster dies, Ray first ends the nodes, and a minute later the process that has connected to it.
    """

    def __init__(self, folder: str) -> None:
        self._pid = 0
        controller = os.getpid()
        if (end := pidfd(controller)) is None:
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads are not copied, and are not needed
            self._pid = os.fork()
        if self._pid == 0:
            try:
                own_session()
                select.select([end], [], [])
                remove_traces(folder)
            finally:
                os._exit(0)
        os.close(end)

    def dismiss(self) -> None:
        """End it: the controller has removed the folder."""
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._pid, 0)
            self._pid = 0


def _own(controllers: str) -> str:
    """Return this host's own folder of a run: all its keepers find the same."""
    return os.path.join(tempfile.gettempdir(), os.path.basename(controllers))


def _use(path: str) -> int:
    """Make a host's own folder, unless another keeper has; return the lock that keeps it."""
    try:
        while True:
            os.makedirs(path, mode=0o700, exist_ok=True)
            owner = os.lstat(path)
            if stat.S_ISLNK(owner.st_mode) or owner.st_uid != os.getuid() or stat.S_IMODE(owner.st_mode) & 0o022:
                raise PermissionError(f"{path} is a link, or not this user's alone")
            with contextlib.suppress(FileNotFoundError):  # the last keeper before us has just removed it
                lock = os.open(
                    os.path.join(path, _USED), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
                )
                fcntl.flock(lock, fcntl.LOCK_SH)
                if os.path.exists(path) and os.path.samestat(os.fstat(lock), os.stat(os.path.join(path, _USED))):
                    return lock
                os.close(lock)
    except OSError as error:
        raise MisuseError(f"cannot make a folder for the run in {os.path.dirname(path)}: {error}") from None


def _mark_of(secret: bytes) -> str:
    return hashlib.sha256(b"folder" + secret).hexdigest()
