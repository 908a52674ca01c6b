"""The interface of launchers, which start all worlds.

A launcher gives each rank a seat, and later reports how its process ended. It knows nothing about
tests. A launcher for several machines makes seats whose channel is a network connection.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Protocol

from everyrank.wire.channel import Channel
from everyrank.wire.messages import FromRank
from everyrank.wire.progress import Progress, shared_memory

#: A rank answers this signal with its stacks, whatever it is doing, the GIL held or not. A real-time
#: signal, so that nothing else uses it.
STACKS_SIGNAL: int = signal.SIGRTMIN + 8 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR2

#: An environment variable of every rank, and so of every program that it runs: the folder of the run.
RUN_VARIABLE = "EVERYRANK_RUN"


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


def read_all(file: IO[bytes], most: int = 1 << 16) -> str:
    """Return the start and the end of what a rank wrote, without moving the rank's offset in the file."""
    try:
        fd, size = file.fileno(), os.fstat(file.fileno()).st_size
        if size <= most:
            return os.pread(fd, most, 0).decode("utf-8", "replace")
        start, end = os.pread(fd, most // 2, 0), os.pread(fd, most // 2, size - most // 2)
    except OSError:
        return ""  # a pipe, or closed
    left_out = f"\n... [everyrank left out {size - most} bytes here] ...\n"
    return start.decode("utf-8", "replace") + left_out + end.decode("utf-8", "replace")


@dataclass(eq=False)
class Seat:
    """The controller's side of one rank's process."""

    number: int
    channel: Channel[FromRank]
    output: Output
    pid: int | None = None
    status: int | None = None  # the wait status, once the process ended
    gone: bool = False
    lines: dict[str, bytearray] = field(default_factory=lambda: {"out": bytearray(), "err": bytearray()})

    def close(self) -> None:
        self.channel.close()
        self.output.close()


@dataclass(frozen=True)
class LostLauncher:
    """An event: the launcher is gone, and its ranks died with it."""

    reason: str


class Launcher(Protocol):
    """Starts and ends ranks. Nothing that it started outlives it."""

    name: str

    def start(self, size: int, leases: Sequence[int] = ()) -> list[Seat]:
        """Start ``size`` ranks, which hold the leases, too. Return at once, before the processes have started."""

    def events(self) -> Iterator[Seat | LostLauncher]:
        """Yield the seats whose process started or ended since the last call, without waiting for more."""

    def kill(self, seats: Iterable[Seat]) -> None:
        """End these ranks now, whatever they are doing, with all that they started."""

    def fileno(self) -> int:
        """Return a descriptor that is readable when ``events`` has something to yield."""

    def close(self) -> None:
        """End everything and leave nothing behind."""


def stacks_name(world: object, rank: object, size: object) -> str:
    """Return the name of a rank's file of stacks in the kernel. ``everyrank stacks`` finds ranks by it."""
    return f"everyrank-stacks-world-{world}-rank-{rank}-of-{size}"


def plain_files(name: str) -> tuple[Output, int]:
    """Make files without names, which are gone with the last process that holds them.

    Return also the descriptor of the rank's progress, for the rank.
    """
    progress = shared_memory()
    out, err = (tempfile.TemporaryFile(buffering=0) for _ in range(2))  # noqa: SIM115 (the seat closes them)
    if hasattr(os, "memfd_create"):
        stacks: IO[bytes] = os.fdopen(os.memfd_create(name), "w+b", buffering=0)
    else:
        stacks = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
    return Output(out, err, stacks, Progress(progress)), progress
