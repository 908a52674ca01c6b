"""The process that ranks are children of, in both local launchers.

A keeper starts ranks when told, reports how each ended, and dies with the controller, taking every
rank, every process that a rank started, and the run's folder with it. It runs nobody's tests, so
nothing that a test does can hold it up. The zygote is a keeper that forks; the spawn launcher's keeper
is a clean interpreter that runs clean interpreters.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import select
import selectors
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterable

from everyrank.channel import Channel, Closed
from everyrank.record import Close, Exited, Kill, Start, Started, ToKeeper, Unsafe

FDS_PER_RANK = 5  # channel, stdout, stderr, stacks, progress
#: And those of its world's leases on GPUs, which are only held. The kernel lets 253 travel at a time.
MOST_FDS = 253

#: How often a keeper looks whether the last process that may touch a GPU is gone, while it waits for that.
_EXPIRY = 0.01

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


@functools.cache  # a forked rank has it from its zygote
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        _libc().prctl(option, value, 0, 0, 0)


def die_with_parent(parent: int) -> None:
    """For a rank: the kernel ends this process when its keeper is gone."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


class Keeper:
    """Serves one controller. ``start`` makes a rank out of its descriptors and returns its pid."""

    def __init__(self, control: Channel[ToKeeper], controller: int, folder: str) -> None:
        self.control = control
        self.folder = folder
        self.pids: dict[int, int] = {}  # number -> pid, of ranks not yet reaped
        self.pidfds: dict[int, int] = {}
        self.leases: dict[int, list[int]] = {}  # by number: the descriptors that hold its GPUs
        self._expired: list[int] = []  # of ranks that have ended; what they started may still be there
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ, "control")
        self._controller = controller
        self._controller_fd = _pidfd(controller)
        if self._controller_fd is not None:
            self._selector.register(self._controller_fd, selectors.EVENT_READ, "controller")
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)

    def serve(self, start: Callable[[list[int]], int], unsafe: str = "") -> None:
        """Until the controller says so, or is gone."""
        try:
            self.control.send(Unsafe(unsafe))
            while self._turn(start):
                pass
        except Closed:
            pass
        finally:
            self.end()

    def _turn(self, start: Callable[[list[int]], int]) -> bool:
        # Without pidfds (macOS) the loop looks around for ended children every so often.
        patience = None if self._controller_fd is not None else 0.02
        for key, _ in self._selector.select(_EXPIRY if self._expired else patience):
            if key.data == "controller":
                return False
            if key.data == "control":
                message, fds = self.control.receive_with_fds(MOST_FDS)
                if isinstance(message, Start):
                    self._start(start, message.number, fds)
                elif isinstance(message, Kill):
                    self.kill(message.numbers)
                elif isinstance(message, Close):
                    return False
        if os.getppid() != self._controller:
            return False
        self._reap()
        return True

    def _start(self, start: Callable[[list[int]], int], number: int, fds: list[int]) -> None:
        try:
            pid = start(fds)
        finally:
            for fd in fds[:FDS_PER_RANK]:
                os.close(fd)
        self.leases[number] = fds[FDS_PER_RANK:]
        self.pids[number] = pid
        pidfd = _pidfd(pid)
        if pidfd is not None:
            self.pidfds[number] = pidfd
            self._selector.register(pidfd, selectors.EVENT_READ, "rank")
        self.control.send(Started(number, pid))

    def _reap(self) -> None:
        ended = False
        numbers = {pid: number for number, pid in self.pids.items()}
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            number = numbers.get(pid)
            if number is None:
                continue  # an orphan that a rank left to us
            ended = True
            del self.pids[number]
            self._expired += self.leases.pop(number)
            pidfd = self.pidfds.pop(number, None)
            if pidfd is not None:
                self._selector.unregister(pidfd)
                os.close(pidfd)
            _kill_group(pid)
            self.control.send(Exited(number, status))
        if ended or self._expired:
            self._kill_orphans()

    def kill(self, numbers: list[int]) -> None:
        for number in numbers:
            if (pid := self.pids.get(number)) is not None:
                _kill_group(pid)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _kill_orphans(self) -> None:
        """End what ended ranks left behind, also what moved to a session of its own. Their GPUs are free after it."""
        ours = set(self.pids.values())
        orphans = [pid for pid in children() if pid not in ours]
        for pid in orphans:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not orphans:
            _close_all(self._expired)
            self._expired.clear()

    def release(self) -> None:
        """For a forked rank: close what belongs to the keeper alone."""
        self._selector.close()
        self.control.close()
        _close_all(self.pidfds.values())
        _close_all(fd for held in self.leases.values() for fd in held)
        _close_all(self._expired)
        if self._controller_fd is not None:
            os.close(self._controller_fd)

    def end(self) -> None:
        """Nothing outlives a keeper."""
        self.kill(list(self.pids))
        with contextlib.suppress(ChildProcessError):
            while True:
                self._kill_orphans()
                pid, _ = os.waitpid(-1, 0)
                for number, known in list(self.pids.items()):
                    if known == pid:
                        del self.pids[number]
                        _kill_group(pid)
        shutil.rmtree(self.folder, ignore_errors=True)


def children() -> list[int]:
    """The pids of this process's children, where the kernel tells."""
    try:  # mostly there are none, and this says so without a file for each thread
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except (ChildProcessError, AttributeError):  # or a platform without it, and without /proc
        return []
    found: list[int] = []
    for task in _listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{task}/children") as file:
            found += [int(pid) for pid in file.read().split()]
    return found


def _close_all(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)


def _listdir(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _pidfd(pid: int) -> int | None:
    opener = getattr(os, "pidfd_open", None)
    if opener is None or not hasattr(select, "epoll"):
        return None
    try:
        fd: int = opener(pid)
    except OSError:
        return None
    return fd


def own_session() -> None:
    """Out of the terminal's reach: Ctrl-C is the controller's to handle."""
    with contextlib.suppress(OSError):
        os.setsid()


def control_channel(fd: int) -> Channel[ToKeeper]:
    return Channel(socket.socket(fileno=fd), ToKeeper)
