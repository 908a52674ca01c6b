"""The controller's side of a keeper, which the fork and the spawn launchers share."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from everyrank.launch.keeper import remove_traces
from everyrank.launch.protocol import RUN_VARIABLE, LostLauncher, Output, Seat, plain_files, stacks_name
from everyrank.wire import witness_pipe
from everyrank.wire.channel import Channel, Closed
from everyrank.wire.messages import (
    Close,
    Exited,
    FromKeeper,
    FromRank,
    Kill,
    Preload,
    Preloaded,
    Started,
    StartRank,
    Unsafe,
)


class LocalLauncher:
    """Ranks on this machine, children of a keeper process."""

    def __init__(self, name: str, keeper: int, control: socket.socket, folder: str) -> None:
        self.name = name
        self.keeper = keeper
        self.folder = folder
        self.lost = ""
        self.make_output: Callable[[str], tuple[Output, list[int]]] = files
        self.before_tidying: Callable[[], object] = lambda: None  # called while the run's folder still exists
        self._control: Channel[FromKeeper] = Channel(control, FromKeeper)
        self._seats: dict[int, Seat] = {}
        self._sockets: dict[int, int] = {}  # by seat: the inode of the rank's end of its channel
        self.preloading = False  # whether the zygote is importing the modules of an order
        self._next = 0
        self._worlds = 0

    def handshake(self) -> str:
        """Wait for the keeper's first message. Return why it should not fork, or ""."""
        try:
            message = self._control.receive()
        except Closed:
            return self._note_loss()
        return message.reason if isinstance(message, Unsafe) else ""

    def fileno(self) -> int:
        return self._control.fileno()

    def start(self, size: int, leases: Sequence[int] = ()) -> list[Seat]:
        self._worlds += 1
        return [self._start_rank(stacks_name(self._worlds, rank, size), leases) for rank in range(size)]

    def _start_rank(self, name: str, leases: Sequence[int]) -> Seat:
        ours, theirs = socket.socketpair()
        try:
            output, passed = self.make_output(name)
            seat = Seat(self._next, Channel(ours, FromRank), output)
            self._next += 1
            self._seats[seat.number] = seat
            self._sockets[seat.number] = os.fstat(theirs.fileno()).st_ino
            self._control.send(StartRank(seat.number), [theirs.fileno(), *passed, *leases])
        except Closed:
            self._note_loss()
            seat.gone = True
        finally:
            theirs.close()
        for fd in passed:
            if fd not in (output.out.fileno(), output.err.fileno(), output.stacks.fileno()):
                os.close(fd)
        return seat

    def events(self) -> Iterator[Seat | LostLauncher]:
        try:
            for message in self._control.arrived():
                if isinstance(message, Preloaded):
                    self.preloading = False
                seat = self._seats.get(getattr(message, "number", -1))
                if seat is None:
                    continue
                if isinstance(message, Started):
                    seat.pid = message.pid
                elif isinstance(message, Exited):
                    seat.status = message.status
                    seat.gone = True
                    witness_pipe.remove(self.folder, seat.pid)
                    del self._seats[seat.number], self._sockets[seat.number]
                yield seat
        except Closed:
            yield LostLauncher(self._note_loss())

    def catch_up(self) -> None:
        """Note what happened to seats while no test was running on them."""
        for _ in self.events():
            pass

    def preload(self, order: Preload) -> None:
        """Let the zygote import these modules before it forks further ranks. Return at once."""
        with contextlib.suppress(Closed):
            self._control.send(order)
            self.preloading = True

    def settle(self) -> None:
        """Wait until the zygote has imported the modules of its order, or has given up."""
        if self.lost or not self.preloading:
            return
        with selectors.DefaultSelector() as selector:
            selector.register(self, selectors.EVENT_READ)
            while self.preloading and not self.lost:
                selector.select()
                self.catch_up()

    def kill(self, seats: Iterable[Seat]) -> None:
        numbers = [seat.number for seat in seats if not seat.gone]
        if numbers:
            with contextlib.suppress(Closed):
                self._control.send(Kill(numbers))

    def close(self) -> None:
        if self.lost:
            return
        self.before_tidying()
        with contextlib.suppress(Closed):
            self._control.send(Close())
        # The keeper closes its end of the socket when it has ended everything; that never takes long.
        self._control.sock.settimeout(10)
        with contextlib.suppress(Closed):
            while True:
                self._control.receive()
        self._wait()
        self._tidy()

    def _note_loss(self) -> str:
        """Note that the keeper died. Its ranks die with it; end what they started."""
        if not self.lost:
            status = self._wait()
            reason = "is gone"
            if status is not None and os.WIFSIGNALED(status):
                reason = f"was killed by {signal.Signals(os.WTERMSIG(status)).name}"
            self.lost = reason
            for seat in self._seats.values():
                seat.gone = True
                if seat.pid:
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.killpg(seat.pid, signal.SIGKILL)
            self._seats.clear()
            _end_orphans(self.folder, set(self._sockets.values()))
            self.before_tidying()
            self._tidy()
        return self.lost

    def _tidy(self) -> None:
        self._control.close()
        remove_traces(self.folder)

    def _wait(self) -> int | None:
        """Reap the keeper, our child, which is about to end. Return its wait status."""
        until = time.monotonic() + 10
        while time.monotonic() < until:
            try:
                pid, status = os.waitpid(self.keeper, os.WNOHANG)
            except ChildProcessError:
                return None
            if pid:
                return status
            time.sleep(0.001)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.keeper, signal.SIGKILL)
        return os.waitpid(self.keeper, 0)[1]


def _end_orphans(folder: str, sockets: set[int]) -> None:
    """End what the ranks of a lost keeper had started, in any session.

    A program that a rank ran has the run's folder in its environment. A fork of a rank holds its channel.
    """
    until = time.monotonic() + 5
    while (orphans := _orphans(f"{RUN_VARIABLE}={folder}".encode(), sockets)) and time.monotonic() < until:
        for pid in orphans:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)


def _orphans(variable: bytes, sockets: set[int]) -> list[int]:
    links = {f"socket:[{inode}]" for inode in sockets}
    found = []
    for entry in os.scandir("/proc") if os.path.isdir("/proc/self") else ():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            with open(f"{entry.path}/environ", "rb") as file:
                ours = variable in file.read().split(b"\0")
            if ours or any(os.readlink(fd.path) in links for fd in os.scandir(f"{entry.path}/fd")):
                found.append(int(entry.name))
    return found


def files(name: str) -> tuple[Output, list[int]]:
    output, progress = plain_files(name)
    return output, [output.out.fileno(), output.err.fileno(), output.stacks.fileno(), progress]


def pipes(name: str) -> tuple[Output, list[int]]:
    """Make pipes for a rank's output, so that it is read as it comes (``-s``)."""
    output, progress = plain_files(name)
    passed = []
    for name in ("out", "err"):
        getattr(output, name).close()
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        setattr(output, name, os.fdopen(reading, "rb", buffering=0))
        passed.append(writing)
    return output, [*passed, output.stacks.fileno(), progress]
