"""The process that ranks are children of, in both local launchers.

A keeper starts ranks when ordered, reports how each ended, and dies with the controller, taking every
rank, every process that a rank started, and the run's folder with it. It runs no tests, so
nothing that a test does can hold it up. The zygote is a keeper that forks; the spawn launcher's keeper
is a clean interpreter that runs clean interpreters.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import select
import selectors
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Sequence

from everyrank.launch.limits import advice
from everyrank.launch.succession import ForkSuccessor, Succession
from everyrank.leaks import libraries
from everyrank.leaks.child_processes import children
from everyrank.wire.channel import Channel, Closed, close_all
from everyrank.wire.keepers import Close, Exited, Kill, NotStarted, Preload, Started, StartRank, ToKeeper, Unsafe

FDS_PER_RANK = 5  # channel, stdout, stderr, stacks, progress
#: The most descriptors of a rank, with those of its world's leases on GPUs: the kernel sends at most 253 at a time.
MOST_FDS = 253

#: While a keeper waits for the last process that may use a GPU to end, it checks this often, in seconds.
_EXPIRY = 0.01

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


@functools.cache  # a forked rank inherits it from its zygote
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        _libc().prctl(option, value, 0, 0, 0)


def die_with_parent(parent: int) -> None:
    """Let the kernel end this process when its parent is gone: for a rank, or a worker of pytest-xdist."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def live_without_parent() -> None:
    """Undo ``die_with_parent``: a keeper must outlive its controller to end what it started."""
    _prctl(_PR_SET_PDEATHSIG, 0)


class Keeper:
    """Starts and ends ranks for one controller.

    ``start`` makes a rank of its descriptors and returns its pid. ``succeed``, if forking is possible, forks a
    process that imports modules and then starts the ranks instead of this one.
    """

    def __init__(self, control: Channel[ToKeeper], controller: int, folder: str) -> None:
        self.control = control
        self.folder = folder
        self.pids: dict[int, int] = {}  # number -> pid, of ranks not yet reaped
        self.pidfds: dict[int, int] = {}
        self.leases: dict[int, list[int]] = {}  # by number: the descriptors that hold its GPUs
        self._expired: list[int] = []  # leases of ranks that have ended; processes that they started may still live
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ, "control")
        self._succession = Succession(self._selector, control.send)
        self._controller = controller
        self._controller_fd = pidfd(controller)
        if self._controller_fd is not None:
            self._selector.register(self._controller_fd, selectors.EVENT_READ, "controller")
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)

    def serve(
        self, start: Callable[[list[int]], int], unsafe: str = "", succeed: ForkSuccessor | None = None
    ) -> None:
        """Serve until the controller sends ``Close``, or is gone."""
        try:
            self.control.send(Unsafe(unsafe))
            while self._turn(start, succeed):
                pass
        except Closed:
            pass
        finally:
            self.end()

    def _turn(self, start: Callable[[list[int]], int], succeed: ForkSuccessor | None) -> bool:
        # Without pidfds (macOS) the loop looks for ended children every so often.
        patience = None if self._controller_fd is not None else 0.02
        for key, _ in self._selector.select(_EXPIRY if self._expired else self._succession.patience(patience)):
            if key.data == "controller":
                return False
            if key.data == "successor" and not self._succession.hear():
                self._end_successor(start)
            if key.data == "control":
                message, fds = self.control.receive_with_fds(MOST_FDS)
                match message:
                    case StartRank(number):
                        if not self._succession.start(message, fds):
                            self._start_here(start, number, fds)
                    case Preload():
                        self._succession.begin(message, succeed)
                    case Kill(numbers):
                        self.kill(numbers)
                        self._succession.kill(numbers)
                    case Close():
                        return False
        if self._succession.is_overdue():
            self._end_successor(start)
        if os.getppid() != self._controller:
            return False
        self._reap()
        return True

    def _start_here(self, start: Callable[[list[int]], int], number: int, fds: list[int]) -> None:
        try:
            if len(fds) < FDS_PER_RANK:  # the kernel passes on no more than this process may have
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            pid = start(fds)
        except OSError as error:
            close_all(fds)
            self.control.send(NotStarted(number, f"could not be started: {advice(error)}"))
            return
        close_all(fds[:FDS_PER_RANK])
        self._adopt(number, pid, fds[FDS_PER_RANK:])
        self.control.send(Started(number, pid))

    def _adopt(self, number: int, pid: int, leases: list[int]) -> None:
        self.leases[number] = leases
        self.pids[number] = pid
        if (ended := pidfd(pid)) is not None:
            self.pidfds[number] = ended
            self._selector.register(ended, selectors.EVENT_READ, "rank")

    def _end_successor(self, start: Callable[[list[int]], int]) -> None:
        """End a successor that is gone or must go.

        Its ranks die with it and become children of this process. Ranks that it was ordered to start, and did not,
        are started here: their world must not suffer.
        """
        successor = self._succession.pid
        assert successor is not None
        with contextlib.suppress(ProcessLookupError):
            os.kill(successor, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(successor, 0)
        _kill_group(successor)
        here = set(children())
        ranks, ordered = self._succession.ended()
        for number, pid in ranks.items():
            if pid in here:
                self._adopt(number, pid, [])
            else:
                self.control.send(Exited(number, signal.SIGKILL))  # a wait status: killed by this signal
        unknown = here - {*ranks.values(), *self.pids.values()}
        self._kill_orphans()
        for number, fds in ordered.items():
            if unknown:  # one of them may be this rank: forked but not reported, with its order already read
                close_all(fds)
                self.control.send(Exited(number, signal.SIGKILL))
            else:
                self._start_here(start, number, fds)

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
                continue  # an orphan of a rank
            ended = True
            del self.pids[number]
            self._expired += self.leases.pop(number)
            if (its_end := self.pidfds.pop(number, None)) is not None:
                self._selector.unregister(its_end)
                os.close(its_end)
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
        """End what ended ranks left behind, also in new sessions; once none is left, release these ranks' GPUs."""
        known = {*self.pids.values(), self._succession.pid}
        orphans = [pid for pid in children() if pid not in known]
        for pid in orphans:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not orphans:
            close_all(self._expired)
            self._expired.clear()

    def release(self) -> None:
        """Close, in a forked rank, what belongs to the keeper alone."""
        self._selector.close()
        self.control.close()
        self._succession.release()
        close_all(self.pidfds.values())
        close_all(fd for held in self.leases.values() for fd in held)
        close_all(self._expired)
        if self._controller_fd is not None:
            os.close(self._controller_fd)

    def end(self) -> None:
        """End all ranks and all that they started, and remove the run's folder: nothing outlives a keeper."""
        self._succession.pid = None  # it is ended with all other children
        self.kill(list(self.pids))
        with contextlib.suppress(ChildProcessError):
            while True:
                self._kill_orphans()
                pid, _ = os.waitpid(-1, 0)
                for number, known in list(self.pids.items()):
                    if known == pid:
                        del self.pids[number]
                        _kill_group(pid)
        if self.folder:
            remove_traces(self.folder)


def remove_traces(folder: str) -> None:
    """Remove what a run keeps outside of its processes: its folder, and the names that multiprocessing used."""
    shutil.rmtree(folder, ignore_errors=True)
    libraries.remove_all(folder)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def pidfd(pid: int) -> int | None:
    """Return a descriptor that is readable once the process has ended; None where there is no such thing."""
    opener = getattr(os, "pidfd_open", None)
    if opener is None or not hasattr(select, "epoll"):
        return None
    try:
        fd: int = opener(pid)
    except OSError:
        return None
    return fd


def own_session() -> None:
    """Leave the terminal's session: only the controller handles Ctrl-C."""
    with contextlib.suppress(OSError):
        os.setsid()


def run_on(cores: Sequence[int] | None) -> None:
    """Run this process, and all ranks that it starts, on these cores."""
    if cores:
        with contextlib.suppress(OSError):  # a sandbox may refuse it
            os.sched_setaffinity(0, cores)


def control_channel(fd: int) -> Channel[ToKeeper]:
    return Channel(socket.socket(fileno=fd), ToKeeper)
