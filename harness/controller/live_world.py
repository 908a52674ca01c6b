"""The processes of a world on the controller's side, and the output that they print while they live."""

from __future__ import annotations

import contextlib
import selectors
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from everyrank.launch.protocol import Launcher, Seat
from everyrank.resources.gpus.world_gpus import WorldGpus

#: Prints a line that a rank wrote.
PrintLine = Callable[[int, bytes], None]


@dataclass(frozen=True)
class Location:
    """Where a rank runs: its host among the hosts of its world, and its number among the ranks there."""

    rank: int
    size: int
    host: int
    hosts: int


@dataclass
class LiveWorld:
    """A world whose processes were started, and may have ended."""

    launcher: Launcher
    seats: Sequence[Seat]
    key: tuple[object, ...]
    number: int = 0  # among the worlds of this pytest process
    served: list[str] = field(default_factory=list)
    broken: bool = False
    gpus: WorldGpus | None = None
    lines: dict[tuple[int, str], bytearray] = field(default_factory=dict)
    """What ranks have written of a line that is not whole yet (``-s``), by rank and stream."""

    def __post_init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.launcher, selectors.EVENT_READ, None)
        for rank, seat in enumerate(self.seats):
            self.selector.register(seat.channel, selectors.EVENT_READ, rank)
            for name, file in seat.live_streams().items():
                self.selector.register(file, selectors.EVENT_READ, (rank, name))

    def locations(self) -> list[Location]:
        """Return where each rank runs."""
        hosts = list(dict.fromkeys(seat.host for seat in self.seats))
        there: dict[str, list[int]] = {host: [] for host in hosts}
        for rank, seat in enumerate(self.seats):
            there[seat.host].append(rank)
        return [
            Location(there[seat.host].index(rank), len(there[seat.host]), hosts.index(seat.host), len(hosts))
            for rank, seat in enumerate(self.seats)
        ]

    def end(self) -> None:
        """End the world and every process that is left of it."""
        self.broken = True
        self.launcher.kill(self.seats)
        if self.gpus is not None:
            self.gpus.close()  # the ranks hold a lease until they are gone
        self.selector.close()
        for seat in self.seats:
            seat.close()

    def stop_listening(self, rank: int) -> None:
        """Stop waiting for messages of a rank, whose channel is closed."""
        with contextlib.suppress(KeyError, ValueError):
            self.selector.unregister(self.seats[rank].channel)

    def pass_on(self, rank: int, name: str, print_line: PrintLine) -> None:
        """Print what a rank has written since the last call (``-s``), as whole lines."""
        file = self.seats[rank].live_streams()[name]
        data = file.read(1 << 16)
        if not data:
            if data is not None:
                self.selector.unregister(file)
            return
        *lines, self.lines[rank, name] = bytearray(self.lines.get((rank, name), b"") + data).split(b"\n")
        for line in lines:
            print_line(rank, bytes(line))

    def show_the_rest(self, print_line: PrintLine) -> None:
        """Print the rest of the ranks' output before the verdict, also a last line that has no newline."""
        # One read is enough: what a rank wrote before its record fits into the pipe.
        for rank, name in [key.data for key in self.selector.get_map().values() if isinstance(key.data, tuple)]:
            self.pass_on(rank, name, print_line)
        for (rank, _), line in self.lines.items():
            if line:
                print_line(rank, bytes(line))
        self.lines.clear()
