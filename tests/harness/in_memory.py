"""A launcher without processes: each rank is a thread of this process that plays a part over its channel.

It proves that all that the controller does to a rank goes through the port, and lets the watch be tested in
milliseconds of the machine's time.
"""

from __future__ import annotations

import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO

from everyrank.launch.protocol import AskedStacks, Launcher, LostLauncher, NativeFrames, Seat, Shape
from everyrank.wire.channel import Channel, Closed
from everyrank.wire.messages import (
    ClosedUp,
    CloseUp,
    FromRank,
    Leave,
    LeftWorld,
    Meet,
    Met,
    Order,
    Phase,
    PhaseEnded,
    Record,
    ToRank,
)


class Part:
    """What one rank does with its orders; a test overrides ``run``."""

    def __init__(self, seat: InMemorySeat, channel: Channel[ToRank]) -> None:
        self.seat = seat
        self.channel = channel
        self.rank = 0

    def play(self) -> None:
        with self.channel.sock:
            try:
                while True:
                    message = self.channel.receive()
                    if isinstance(message, Order):
                        self.rank = message.rank
                        self.begin(message)
                        self.run(message)
                    elif isinstance(message, CloseUp):
                        self.channel.send(ClosedUp(self.close_up()))
                    elif isinstance(message, Leave):
                        self.channel.send(LeftWorld(""))
                        self.seat.end(0)
                        return
            except (Closed, OSError):
                return
            except BaseException:
                self.seat.end(1 << 8)  # as a process with an uncaught exception
                raise

    def begin(self, order: Order) -> None:
        self.seat.began, self.seat.began_at = order.number, time.monotonic()

    def run(self, order: Order) -> None:
        """Pass."""
        self.file("passed")

    def close_up(self) -> str:
        return ""

    def file(self, outcome: str, brief: str = "") -> None:
        """File a record whose call ended so."""
        call = Phase("call", outcome, {}, time.monotonic(), brief)
        phases = [Phase("setup", "passed", {}), call, Phase("teardown", "passed", {})]
        if outcome != "passed":
            self.channel.send(PhaseEnded(call))
        self.channel.send(Record("the test", phases, [], [], [], None))

    def meet(self, text: str) -> Met:
        self.channel.send(Meet("a meeting", text, text))
        met = self.channel.receive()
        assert isinstance(met, Met)
        return met

    def die(self, status: int) -> None:
        self.seat.end(status)
        raise Closed

    def wait_for_ever(self) -> None:
        """Wait until the controller ends this rank."""
        self.seat.killed.wait()
        raise Closed


class InMemorySeat(Seat):
    def __init__(self, number: int, channel: Channel[FromRank], ended: Callable[[InMemorySeat], None]) -> None:
        super().__init__(number, channel)
        self.killed = threading.Event()
        self.dying = 0  # the fatal signal in whose handler it sleeps
        self.began, self.began_at = -1, 0.0
        self._ended = ended

    def end(self, status: int) -> None:
        """End as a process does, with a wait status."""
        self.status = status
        self._ended(self)

    def phase_of(self, order: int) -> tuple[str, float]:
        return ("call", self.began_at) if self.began == order else ("", 0.0)

    def processor_time(self) -> tuple[float, bool]:
        return 0.0, False

    def is_ending(self) -> bool:
        return False

    def stop_if_dying(self) -> int:
        return self.dying

    def let_die(self, number: int) -> None:
        self.dying = 0
        self.end(number)

    def interrupt(self) -> None:
        raise NotImplementedError

    def live_streams(self) -> Mapping[str, IO[bytes]]:
        return {}

    def printed(self) -> list[str]:
        return [f"the last words of seat {self.number}"]

    def stacks_text(self) -> str:
        return ""


class InMemory(Launcher):
    """Ranks that are threads. ``parts`` are what the ranks of a world do, in their order."""

    name = "in-memory"

    def __init__(self, parts: Sequence[type[Part]]) -> None:
        super().__init__(tempfile.gettempdir())
        self._parts = parts
        self._events: list[Seat | LostLauncher] = []
        self._readable, self._writable = os.pipe()
        self._threads: list[threading.Thread] = []
        self.seats: list[InMemorySeat] = []
        self.asked: list[int] = []

    def start(self, shape: Shape, leases: Sequence[int] = ()) -> list[InMemorySeat]:
        return [self._start(number) for number in range(shape.size)]

    def _start(self, number: int) -> InMemorySeat:
        ours, theirs = socket.socketpair()
        seat = InMemorySeat(number, Channel(ours, FromRank), self._announce)
        part = self._parts[number](seat, Channel(theirs, ToRank))
        self._threads.append(threading.Thread(target=part.play, daemon=True))
        self._threads[-1].start()
        self.seats.append(seat)
        return seat

    def _announce(self, event: Seat | LostLauncher) -> None:
        self._events.append(event)
        os.write(self._writable, b"!")

    def lose(self, reason: str) -> None:
        self.lost = reason
        self._announce(LostLauncher(reason))

    def events(self) -> Iterator[Seat | LostLauncher]:
        os.read(self._readable, 1)
        event = self._events.pop(0)
        if isinstance(event, Seat):
            event.gone = True
        yield event

    def kill(self, seats: Iterable[Seat]) -> None:
        for seat in seats:
            if isinstance(seat, InMemorySeat) and not seat.gone:
                seat.killed.set()

    def stacks(self, seats: Mapping[int, Seat], native_within: float) -> dict[int, AskedStacks]:
        self.asked += seats
        text = 'Current thread 0x1 (most recent call first):\n  File "/project/test_it.py", line 7 in waits\n'
        return {rank: AskedStacks(text) for rank in seats}

    def native_frames(self, seats: Mapping[int, Seat], within: float) -> NativeFrames:
        return {
            rank: ("sleep at sleep.c:55", "__restore_rt in libc.so.6", f"crash at rank.c:{rank}") for rank in seats
        }

    def fileno(self) -> int:
        return self._readable

    def let_end(self) -> None:
        """Release all ranks that wait to be ended, and wait for the end of all."""
        self.kill(self.seats)
        for thread in self._threads:
            thread.join(10)

    def close(self) -> None:
        self.let_end()
        os.close(self._readable)
        os.close(self._writable)
