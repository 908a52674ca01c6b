"""The port of launchers, which start all worlds.

A launcher gives each rank a seat, and later reports how its process ended. It knows nothing about tests. All that the
controller does to a rank's process, or asks of it, goes through the launcher and the seat: a launcher for other hosts
is a ``Launcher`` and a ``Seat`` in one module, and a line under ``everyrank.launchers`` in the entry points of its
package. ``docs/launchers.md`` has an example.
"""

from __future__ import annotations

import abc
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from everyrank.devices import device_types
from everyrank.launch.hosts import Hosts
from everyrank.model.counts import count
from everyrank.resources.gpus.needs import Needs
from everyrank.wire.channel import Channel
from everyrank.wire.keepers import Preload
from everyrank.wire.messages import FromRank

if TYPE_CHECKING:
    import pytest

#: A rank answers this signal with its stacks, whatever it is doing, the GIL held or not. A real-time
#: signal, so that nothing else uses it.
STACKS_SIGNAL: int = signal.SIGRTMIN + 8 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR2

#: The signals of crashes, by the words with which faulthandler reports them.
FATAL = {
    "Segmentation fault": signal.SIGSEGV,
    "Aborted": signal.SIGABRT,
    "Bus error": signal.SIGBUS,
    "Floating point exception": signal.SIGFPE,
    "Illegal instruction": signal.SIGILL,
}

#: At most this many readers of C frames run at a time.
NATIVE_READERS = 4


#: The C frames of ranks, or why they are unknown.
NativeFrames = dict[int, tuple[str, ...]]


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


@dataclass(frozen=True)
class AskedChild:
    """A process that a rank has started, in a roll call."""

    pid: int
    title: str  # "DataLoader worker", or the name of its program
    text: str  # as faulthandler writes the stacks of all threads; "" without an answer


@dataclass(frozen=True)
class AskedStacks:
    """A rank's answer in a roll call."""

    text: str  # as faulthandler writes the stacks of all threads; "" without an answer
    state: str = ""  # "stopped" if a signal holds the process
    native: tuple[str, ...] = ()  # its C frames, if they were read meanwhile
    children: tuple[AskedChild, ...] = ()


class Seat(abc.ABC):
    """The controller's side of one rank's process, wherever that runs."""

    def __init__(self, number: int, channel: Channel[FromRank]) -> None:
        self.number = number
        self.channel = channel
        self.pid: int | None = None
        """The process, once it has started; on its own host."""
        self.status: int | None = None
        """The wait status, once the process ended."""
        self.gone = False
        """Whether the process is gone, or never started."""
        self.lost = ""
        """What the process was lost with, if its wait status cannot be known: the host that it ran on, say."""
        self.host = ""
        """The name of the host that it runs on, if worlds of this launcher may run on several."""

    @abc.abstractmethod
    def phase_of(self, order: int) -> tuple[str, float]:
        """Return the phase of this order's test that the rank is in, and when the test began by our monotonic clock.

        Return an empty text before the test has begun.
        """

    @abc.abstractmethod
    def processor_time(self) -> tuple[float, bool]:
        """Return the seconds that the process and its children have run, and whether they want to run now."""

    def waited_for_core(self) -> float:
        """Return how many seconds the process has wanted to run and waited for a core, as far as it is known.

        That counts from the first call. Limits of the harness are longer by this time.
        """
        return 0.0

    @abc.abstractmethod
    def is_ending(self) -> bool:
        """Return whether the process has ended or was killed, even if nothing has reported it yet."""

    def stop_if_dying(self) -> int:
        """Stop the process if it sleeps in the handler of a fatal signal (``--death-stacks``). Return the signal."""
        return 0

    def let_die(self, number: int) -> None:  # noqa: B027 (optional)
        """End the process, which was stopped in the handler of this signal, by it."""

    @abc.abstractmethod
    def interrupt(self) -> None:
        """Interrupt the process, as Ctrl-C does."""

    @abc.abstractmethod
    def live_streams(self) -> Mapping[str, IO[bytes]]:
        """Return the streams whose lines are printed as they come (``-s``), by name; none without ``-s``."""

    @abc.abstractmethod
    def printed(self) -> list[str]:
        """Return what the rank has written to stdout and stderr, as far as it is kept."""

    @abc.abstractmethod
    def stacks_text(self) -> str:
        """Return what the process wrote about its stacks, also when it crashed."""

    def close(self) -> None:
        """Close the controller's side; the process has ended."""
        self.channel.close()


@dataclass(frozen=True)
class Shape:
    """What a world is made of."""

    size: int
    spread: bool = False  # each rank on another host
    gpus: Needs | None = None  # a GPU for each rank, of those that the launcher's hosts have

    def __str__(self) -> str:
        ranks = count(self.size, "rank")
        if self.gpus is not None:
            title = device_types.find(self.gpus.type).titled
            ranks += f" with {title}{f' {self.gpus.kind}' if self.gpus.kind else ''} each"
        return f"{ranks} on different hosts" if self.spread and self.size > 1 else ranks


@dataclass(frozen=True)
class LostLauncher:
    """An event: the launcher is gone, and its ranks died with it."""

    reason: str


class Launcher(abc.ABC):
    """Starts and ends ranks. Nothing that it started outlives it."""

    name: str
    forks = False
    """Whether ranks are forks, which have the collected items. Any other rank collects its test's file first."""
    same_host = False
    """Whether the processes of ranks can be watched from here. Only then is a deadlock found before the deadline."""
    keeper_title = "launcher"
    """What texts call the process that keeps the ranks."""
    preloading = False
    """Whether modules are being imported for further ranks."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        """The run's folder, which all ranks can write to."""
        self.hosts = Hosts(folder)
        """Where the ranks run. A launcher whose worlds may run on several hosts has others."""
        self.lost = ""
        """How the launcher ended, if it is gone."""
        self.before_tidying: Callable[[], object] = lambda: None
        """Called while the run's folder still exists."""
        self.report: Callable[[str], object] = lambda text: None
        """Called with a line about a long wait."""

    @abc.abstractmethod
    def start(self, shape: Shape, leases: Sequence[int] = ()) -> Sequence[Seat]:
        """Start the ranks of a world, which hold the leases, too.

        Return at once, before the processes have started.
        """

    @abc.abstractmethod
    def events(self) -> Iterator[Seat | LostLauncher]:
        """Yield the seats whose process started or ended since the last call, without waiting for more."""

    @abc.abstractmethod
    def kill(self, seats: Iterable[Seat]) -> None:
        """End these ranks now, whatever they are doing, with all that they started."""

    @abc.abstractmethod
    def stacks(self, seats: Mapping[int, Seat], native_within: float) -> dict[int, AskedStacks]:
        """Ask these ranks for their stacks; read C frames of a few, for at most that many seconds, if it is not 0."""

    @abc.abstractmethod
    def fileno(self) -> int:
        """Return a descriptor that is readable when ``events`` has something to yield."""

    @abc.abstractmethod
    def close(self) -> None:
        """End everything and leave nothing behind."""

    def native_frames(self, seats: Mapping[int, Seat], within: float) -> NativeFrames:
        """Return the C frames of these ranks, as far as they can be read."""
        return {}

    def cannot_start(self, shape: Shape) -> str:
        """Return why a test that needs such a world is skipped here, or "". Raise a MisuseError if it must not be."""
        spread = shape.spread and shape.size > 1
        return f"needs {shape.size} hosts, the launcher {self.name} has 1" if spread else ""

    def has_room(self, shape: Shape) -> bool:
        """Return whether such a world can start now. If not, idle worlds end before it starts."""
        return True

    def is_wanted(self) -> bool:
        """Return whether others wait for what idle worlds hold. Then these end, and ``give_back`` is called."""
        return False

    def give_back(self) -> None:  # noqa: B027 (optional)
        """Give back all that is held for further worlds. No world is left."""

    def catch_up(self) -> None:
        """Note what happened to seats while no test was running on them."""
        for _ in self.events():
            pass

    def preload(self, order: Preload) -> None:  # noqa: B027 (optional)
        """Import these modules for further ranks, if that helps. Return at once."""

    def settle(self) -> None:  # noqa: B027 (optional)
        """Wait until no modules are being imported for further ranks."""


@dataclass(frozen=True)
class LaunchContext:
    """What a launcher may need of the run."""

    prepare: Callable[[], Any]
    """Prepares a fork of this process to fork ranks."""
    new_folder: Callable[[], str]
    """Makes the run's folder."""
    print_live: bool
    """Whether the ranks' output is printed as it comes (``-s``)."""
    terminal: Callable[[], AbstractContextManager[None]]
    """Gives the real standard streams back meanwhile, for ranks that inherit them."""
    session: pytest.Session
    cores: Sequence[int] | None
    """The cores of this host that ranks on it may run on; None means all."""


class CannotLaunch(Exception):
    """A launcher cannot be used here; the text says why."""


class Member(abc.ABC):
    """A pytest process that a launcher's engine started beside the controller's, to keep ranks for it."""

    @abc.abstractmethod
    def serve(self, context: LaunchContext) -> int:
        """Keep ranks until the controller's run ends. Return its exit code."""


#: Starts a launcher; an entry point of the group ``everyrank.launchers`` names one. It may raise ``CannotLaunch``.
Launch = Callable[[LaunchContext], Launcher]
