"""The controller's side of a keeper, which the fork and the spawn launchers share."""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import signal
import socket
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from everyrank.launch import limits, native, orphans, processes
from everyrank.launch.keeper import FDS_PER_RANK, remove_traces
from everyrank.launch.protocol import (
    FATAL,
    AskedStacks,
    Launcher,
    LostLauncher,
    NativeFrames,
    Seat,
    Shape,
    read_all,
)
from everyrank.launch.succession import PATIENCE
from everyrank.leaks.child_processes import children
from everyrank.model.run_mark import run_mark
from everyrank.patience import CoreWaits, Patience
from everyrank.wire import witness_pipe
from everyrank.wire.channel import Channel, Closed, Late
from everyrank.wire.keepers import (
    Close,
    Exited,
    FromKeeper,
    Kill,
    NotStarted,
    Preload,
    Preloaded,
    Started,
    StartRank,
    Unsafe,
)
from everyrank.wire.messages import FromRank
from everyrank.wire.progress import Progress, shared_memory

_FATAL = re.compile(f"^Fatal Python error: ({'|'.join(FATAL)})$", re.MULTILINE)

#: A keeper is ready within this many seconds. It imports what ranks need, perhaps from a slow file system.
_START = 120.0
#: After the time that was given for imports, a keeper reports within this many seconds that it has given them up.
_GIVES_UP = 30.0
#: A world that waits for imports for longer reports that.
_MUTE = 10.0
#: A keeper that was ordered to close, or is lost, ends within this many seconds.
_ENDS = 10.0


@dataclass
class Output:
    """The files of a rank that are not its channel, on the controller's side."""

    out: IO[bytes]
    err: IO[bytes]
    stacks: IO[bytes]  # faulthandler writes here, on demand or at a fatal signal
    progress: Progress

    def close(self) -> None:
        for file in (self.out, self.err, self.stacks, self.progress):
            file.close()


class LocalSeat(Seat):
    """The controller's side of a rank on this host."""

    def __init__(self, number: int, channel: Channel[FromRank], output: Output, live: bool) -> None:
        super().__init__(number, channel)
        self._output = output
        self._live = live
        self._waits: CoreWaits | None = None

    @property
    def asked(self) -> processes.AskedProcess:
        return processes.AskedProcess(self.pid, self._output.stacks)

    def phase_of(self, order: int) -> tuple[str, float]:
        return self._output.progress.phase_of(order)

    def processor_time(self) -> tuple[float, bool]:
        return processes.processor_time(self.pid)

    def waited_for_core(self) -> float:
        if self._waits is None and self.pid is not None:
            self._waits = CoreWaits([self.pid])
        return self._waits() if self._waits is not None else 0.0

    def is_ending(self) -> bool:
        return self.pid is not None and processes.is_ending(self.pid)

    def stop_if_dying(self) -> int:
        # faulthandler writes this before the process sleeps, and nothing else does.
        signals = _FATAL.findall(self.stacks_text())
        if not signals or not self.pid or self.gone:
            return 0
        os.kill(self.pid, signal.SIGSTOP)
        return FATAL[signals[-1]]

    def let_die(self, number: int) -> None:
        if self.pid:
            os.kill(self.pid, number)
            os.kill(self.pid, signal.SIGCONT)

    def interrupt(self) -> None:
        if self.pid is not None:
            os.kill(self.pid, signal.SIGINT)

    def live_streams(self) -> dict[str, IO[bytes]]:
        return {"out": self._output.out, "err": self._output.err} if self._live else {}

    def printed(self) -> list[str]:
        return [read_all(self._output.out), read_all(self._output.err)]

    def stacks_text(self) -> str:
        return read_all(self._output.stacks)

    def close(self) -> None:
        super().close()
        self._output.close()


class LocalLauncher(Launcher):
    """Ranks on this host, children of a keeper process."""

    same_host = True

    def __init__(
        self, name: str, keeper: int, control: socket.socket, live: bool, folder: str, forks: bool = False
    ) -> None:
        super().__init__(folder)
        self.name = name
        self.forks = forks
        self.keeper_title = "zygote" if forks else "keeper of the ranks"
        self.keeper = keeper
        self._live = live
        self._control: Channel[FromKeeper] = Channel(control, FromKeeper)
        self._seats: dict[int, LocalSeat] = {}
        self._sockets: dict[int, int] = {}  # by seat: the inode of the rank's end of its channel
        self._next = 0
        self._worlds = 0
        self._settles = Patience(0.0)  # until the imports of an order have ended, or the keeper hangs
        self.run_folder = folder
        """The folder of the run, by whose name the programs that ranks run are found."""

    def handshake(self) -> str:
        """Wait for the keeper's first message. Return why it should not fork, or ""."""
        try:
            message = self._control.receive(Patience(_START, CoreWaits([self.keeper])))
        except Closed as error:
            if isinstance(error, Late):
                os.kill(self.keeper, signal.SIGKILL)
                self._note_loss()
                self.lost = f"did not start within {_START:g} s"
                return self.lost
            return self._note_loss()
        return message.reason if isinstance(message, Unsafe) else ""

    def fileno(self) -> int:
        return self._control.fileno()

    def cannot_start(self, shape: Shape) -> str:
        limits.check(shape.size, FDS_PER_RANK)
        return super().cannot_start(shape)

    def start(self, shape: Shape, leases: Sequence[int] = ()) -> list[LocalSeat]:
        self._worlds += 1
        names = [stacks_name(self._worlds, rank, shape.size) for rank in range(shape.size)]
        seats: list[LocalSeat] = []
        try:
            seats.extend(self._start_rank(name, leases) for name in names)
        except OSError:  # no descriptors are left, or no room
            self.kill(seats)
            for seat in seats:
                seat.close()
            raise
        return seats

    def _start_rank(self, name: str, leases: Sequence[int]) -> LocalSeat:
        with contextlib.ExitStack() as opened:
            controller_end, rank_end = map(opened.enter_context, socket.socketpair())
            output, passed = (_pipes if self._live else _files)(name)
            opened.pop_all()
        seat = self._start_seat(Channel(controller_end, FromRank), rank_end, output, passed, leases)
        for fd in passed:
            if fd not in (output.out.fileno(), output.err.fileno(), output.stacks.fileno()):
                os.close(fd)
        return seat

    def start_connected(self, name: str, connections: Sequence[socket.socket]) -> LocalSeat:
        """Start a rank that talks to its controller itself.

        Its connections are its channel and, if its output is printed as it comes, stdout and stderr.
        """
        channel, *streams = connections
        output, passed = _files(name)
        passed[: len(streams)] = [stream.fileno() for stream in streams]
        seat = self._start_seat(Channel(channel, FromRank), channel, output, passed, [])
        for stream in streams:
            stream.close()
        return seat

    def _start_seat(
        self,
        channel: Channel[FromRank],
        rank_end: socket.socket,
        output: Output,
        passed: Sequence[int],
        leases: Sequence[int],
    ) -> LocalSeat:
        seat = LocalSeat(self._next, channel, output, self._live)
        self._next += 1
        self._seats[seat.number] = seat
        self._sockets[seat.number] = os.fstat(rank_end.fileno()).st_ino
        try:
            self._control.send(StartRank(seat.number), [rank_end.fileno(), *passed, *leases])
        except Closed:
            self._note_loss()
            seat.gone = True
        finally:
            rank_end.close()
        return seat

    def events(self) -> Iterator[Seat | LostLauncher]:
        try:
            for message in self._control.arrived():
                match message:
                    case Started(number, pid) if number in self._seats:
                        self._seats[number].pid = pid
                        yield self._seats[number]
                    case Exited(number, status) if number in self._seats:
                        self._seats[number].status = status
                        yield self._end(number)
                    case NotStarted(number, reason) if number in self._seats:
                        self._seats[number].lost = reason
                        yield self._end(number)
                    case Preloaded():
                        self.preloading = False
        except Closed:
            yield LostLauncher(self._note_loss())

    def _end(self, number: int) -> LocalSeat:
        seat = self._seats.pop(number)
        del self._sockets[number]
        seat.gone = True
        witness_pipe.remove(self.folder, seat.pid)
        return seat

    def stacks(self, seats: Mapping[int, Seat], native_within: float) -> dict[int, AskedStacks]:
        asked = {rank: seat.asked for rank, seat in seats.items() if isinstance(seat, LocalSeat)}
        return processes.ask(asked, native_within, processes.stop(asked))

    def native_frames(self, seats: Mapping[int, Seat], within: float) -> NativeFrames:
        return native.read({rank: seat.pid for rank, seat in seats.items()}, within)

    def preload(self, order: Preload) -> None:
        """Let the zygote import these modules before it forks further ranks. Return at once."""
        with contextlib.suppress(Closed):
            self._control.send(order)
            self.preloading, self._settles = True, Patience(PATIENCE * order.within + _GIVES_UP)

    def settle(self) -> None:
        """Wait until the zygote has imported the modules of its order, or has given up."""
        if self.lost or not self.preloading:
            return
        mute: Patience | None = Patience(_MUTE)
        with selectors.DefaultSelector() as selector:
            selector.register(self, selectors.EVENT_READ)
            while self.preloading and not self.lost and (left := self._settles.turn()):
                selector.select(left)
                self.catch_up()
                if mute is not None and not mute.turn():
                    mute = None
                    importers = _importers(self.keeper, {seat.pid for seat in self._seats.values()})
                    self.report(f"a world waits until {importers} imported modules for its ranks")
        self.preloading = False  # a keeper that hangs: the ranks of the next world will not start

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
        patience = Patience(_ENDS, CoreWaits([self.keeper]))
        with contextlib.suppress(Closed):
            while True:
                self._control.receive(patience)
        _reap(self.keeper)
        self._tidy()

    def _note_loss(self) -> str:
        """Note that the keeper died. Its ranks die with it; end what they started."""
        if not self.lost:
            status = _reap(self.keeper)
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
            try:
                orphans.end(run_mark(self.run_folder, self.keeper), set(self._sockets.values()))
                self.before_tidying()
            finally:  # no keeper is left that would remove the folder after a Ctrl-C
                self._tidy()
        return self.lost

    def _tidy(self) -> None:
        self._control.close()
        remove_traces(self.folder)


def _reap(keeper: int) -> int | None:
    """Reap a keeper, our child, which is about to end. Return its wait status."""
    patience = Patience(_ENDS, CoreWaits([keeper]))
    while patience.turn():
        try:
            pid, status = os.waitpid(keeper, os.WNOHANG)
        except ChildProcessError:
            return None
        if pid:
            return status
        time.sleep(0.001)
    with contextlib.suppress(ProcessLookupError):
        os.kill(keeper, signal.SIGKILL)
    return os.waitpid(keeper, 0)[1]


def _importers(keeper: int, ranks: set[int | None]) -> str:
    pids = [pid for pid in children(keeper) if pid not in ranks]
    return " and ".join(f"process {pid}{processes.state(pid) and ', which is stopped,'}" for pid in pids)


def _files(name: str) -> tuple[Output, list[int]]:
    """Make files without names, which are gone with the last process that holds them; and what the rank gets."""
    with contextlib.ExitStack() as opened:
        progress = shared_memory()
        opened.callback(os.close, progress)
        out, err = (opened.enter_context(tempfile.TemporaryFile(buffering=0)) for _ in range(2))
        if hasattr(os, "memfd_create"):
            stacks: IO[bytes] = opened.enter_context(os.fdopen(os.memfd_create(name), "w+b", buffering=0))
        else:
            stacks = opened.enter_context(tempfile.TemporaryFile(buffering=0))
        output = Output(out, err, stacks, Progress(progress))
        opened.pop_all()  # the seat closes them
    return output, [out.fileno(), err.fileno(), stacks.fileno(), progress]


def _pipes(name: str) -> tuple[Output, list[int]]:
    """Make pipes for a rank's output, so that it is read as it comes (``-s``)."""
    output, (_, _, stacks, progress) = _files(name)
    passed = []
    for stream in ("out", "err"):
        getattr(output, stream).close()
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        setattr(output, stream, os.fdopen(reading, "rb", buffering=0))
        passed.append(writing)
    return output, [*passed, stacks, progress]


def stacks_name(world: object, rank: object, size: object) -> str:
    """Return the name of a rank's file of stacks in the kernel. ``everyrank stacks`` finds ranks by it."""
    return f"everyrank-stacks-world-{world}-rank-{rank}-of-{size}"
