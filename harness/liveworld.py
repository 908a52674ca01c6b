"""The processes of a world, as the controller holds them, and what they print while they live."""

from __future__ import annotations

import contextlib
import os
import selectors
from collections.abc import Callable
from dataclasses import dataclass, field

from everyrank.gpus import GpuLease
from everyrank.launch.protocol import Launcher, Seat

#: Shows a line of a rank.
Live = Callable[[int, bytes], None]


@dataclass
class LiveWorld:
    """A world that is up, or was."""

    launcher: Launcher
    seats: list[Seat]
    key: tuple[object, ...]
    number: int = 0  # among the worlds of this pytest process
    served: list[str] = field(default_factory=list)
    broken: bool = False
    lease: GpuLease | None = None

    def __post_init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.launcher, selectors.EVENT_READ, None)
        for rank, seat in enumerate(self.seats):
            self.selector.register(seat.channel, selectors.EVENT_READ, rank)
            for name, file in (("out", seat.output.out), ("err", seat.output.err)):
                if not os.fstat(file.fileno()).st_mode & 0o100000:  # a pipe: live output
                    self.selector.register(file, selectors.EVENT_READ, (rank, name))

    def end(self) -> None:
        """Throw the world away. What is left of it ends with it."""
        self.broken = True
        self.launcher.kill(self.seats)
        if self.lease is not None:
            self.lease.close()  # the ranks hold it until they are gone
        self.selector.close()
        for seat in self.seats:
            seat.close()

    def deaf(self, rank: int) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self.selector.unregister(self.seats[rank].channel)

    def pass_on(self, rank: int, name: str, live: Live) -> None:
        """Live output (``-s``), whole lines."""
        seat = self.seats[rank]
        file = seat.output.out if name == "out" else seat.output.err
        data = file.read(1 << 16)
        if not data:
            if data is not None:
                self.selector.unregister(file)
            return
        *lines, seat.lines[name] = bytearray(seat.lines[name] + data).split(b"\n")
        for line in lines:
            live(rank, bytes(line))

    def show_the_rest(self, live: Live) -> None:
        """What a rank printed in a test is shown before the verdict, also a last line that has no end."""
        # Once is enough: what a rank wrote before its record fits into the pipe.
        for rank, name in [key.data for key in self.selector.get_map().values() if isinstance(key.data, tuple)]:
            self.pass_on(rank, name, live)
        for rank, seat in enumerate(self.seats):
            for name, line in seat.lines.items():
                if line:
                    live(rank, bytes(line))
                    seat.lines[name] = bytearray()
