"""The controller's side of remote keepers, and of the ranks that they keep."""

from __future__ import annotations

import contextlib
import itertools
import os
import selectors
import shutil
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import IO, Any, TypeVar

import msgspec
from everyrank.errors import MisuseError
from everyrank.launch.local import stacks_name
from everyrank.launch.protocol import AskedStacks, Launcher, LostLauncher, Seat
from everyrank.launch.remote.door import ERR, OUT, RANK, SILENCE, Door, Visitor
from everyrank.wire.channel import Channel, Closed
from everyrank.wire.messages import Close, Exited, FromRank, Kill, Preload, Preloaded, Progressed, Record, Started
from everyrank.wire.remote import (
    Answer,
    AskPrinted,
    AskStacks,
    AskState,
    Done,
    Forget,
    FreePort,
    Goodbye,
    Halt,
    Interrupt,
    LostRanks,
    NotStarted,
    Port,
    Printed,
    Ready,
    ReservePort,
    Stacks,
    StartSeat,
    State,
)

#: A keeper answers within this many seconds, also on a busy host; otherwise it is lost.
_ANSWER = 30.0
#: What a rank sent before its end arrives within this many seconds of the report of its end.
_LAST_WORDS = 5.0

Kind = TypeVar("Kind", bound=Answer)


class Link:
    """The controller's side of one remote keeper."""

    def __init__(self, name: str, channel: Channel[Any], ready: Ready, boot: str) -> None:
        self.name = name
        self.channel = channel
        self.ready = ready
        self.same_host = ready.boot == boot
        self.clock_ahead = 0.0 if self.same_host else ready.clock - time.monotonic()
        """How far its monotonic clock is ahead of ours."""
        self.lost = ""
        self.preloading = False
        self.wake: Callable[[], object] = lambda: None
        """Called when something arrived while nobody listened."""
        self.arrived: deque[msgspec.Struct] = deque()
        self._answers: dict[int, Answer] = {}
        self._requests = itertools.count(1)

    @property
    def address(self) -> str:
        """Its address, as other hosts can reach it."""
        host: str = self.channel.sock.getpeername()[0]
        return host

    def send(self, message: msgspec.Struct) -> None:
        if not self.lost:
            try:
                self.channel.send(message)
            except Closed as error:
                self.lose(error)

    def request(self) -> int:
        return next(self._requests)

    def ask(self, question: Any, kind: type[Kind]) -> Kind | None:
        self.send(question)
        return self.answer(question.request, kind)

    def answer(self, request: int, kind: type[Kind]) -> Kind | None:
        """Wait for the answer to a question; None if the keeper is lost."""
        until = time.monotonic() + _ANSWER
        while not self.lost and request not in self._answers:
            self.channel.sock.settimeout(max(0.01, until - time.monotonic()))
            try:
                self._take(self.channel.receive())
            except Closed as error:
                self.lose(error)
            finally:
                self.channel.sock.settimeout(None)
        found = self._answers.pop(request, None)
        return found if isinstance(found, kind) else None

    def listen(self) -> None:
        """Take what has arrived."""
        try:
            for message in self.channel.arrived():
                self._take(message)
        except Closed as error:
            self.lose(error)

    def _take(self, message: msgspec.Struct) -> None:
        if isinstance(message, Answer):
            self._answers[message.request] = message
        else:
            self.arrived.append(message)
            self.wake()

    def lose(self, error: Exception) -> None:
        silent = isinstance(error.__cause__, TimeoutError) or "timed out" in str(error)
        self.lost = f"{self.name} {f'was silent for {SILENCE} s' if silent else 'is gone'}"
        self.wake()


class RankChannel(Channel[Any]):
    """The channel of a rank on another host. It keeps the rank's progress, and sets its clock."""

    def __init__(self, sock: socket.socket, clock_ahead: float) -> None:
        super().__init__(sock, FromRank | Progressed)
        self._clock_ahead = clock_ahead
        self._test, self._phase, self._began = -1, "", 0.0

    def phase_of(self, order: int) -> tuple[str, float]:
        return (self._phase, self._began) if self._test == order else ("", 0.0)

    def _next(self) -> Any:
        while isinstance(message := super()._next(), Progressed):
            if message.test != self._test:
                self._test, self._began = message.test, time.monotonic()
            self._phase = message.when
        if isinstance(message, Record) and self._clock_ahead:
            replace = msgspec.structs.replace
            phases = [replace(phase, ended_at=phase.ended_at - self._clock_ahead) for phase in message.phases]
            message = replace(message, phases=phases)
        return message


class RemoteSeat(Seat):
    """The controller's side of a rank that a remote keeper has started."""

    channel: RankChannel

    def __init__(self, number: int, channel: RankChannel, link: Link, streams: Mapping[str, IO[bytes]]) -> None:
        super().__init__(number, channel)
        self.host = link.ready.node
        self.link = link
        self.closed = False
        self._streams = streams

    def phase_of(self, order: int) -> tuple[str, float]:
        return self.channel.phase_of(order)

    def processor_time(self) -> tuple[float, bool]:
        state = self._state()
        return (state.seconds, state.wants) if state is not None else (0.0, False)

    def is_ending(self) -> bool:
        state = self._state()
        return state is None or state.ending

    def _state(self) -> State | None:
        return None if self.gone else self.link.ask(AskState(self.link.request(), self.number), State)

    def interrupt(self) -> None:
        self.link.send(Interrupt(self.number))

    def live_streams(self) -> Mapping[str, IO[bytes]]:
        return self._streams

    def printed(self) -> list[str]:
        found = self.link.ask(AskPrinted(self.link.request(), self.number), Printed)
        return found.printed if found is not None else []

    def stacks_text(self) -> str:
        found = self.link.ask(AskPrinted(self.link.request(), self.number), Printed)
        return found.stacks if found is not None else ""

    def close(self) -> None:
        super().close()
        self.closed = True
        for stream in self._streams.values():
            stream.close()
        self.link.send(Forget(self.number))


class RemoteLauncher(Launcher):
    """Ranks of remote keepers. Each keeper keeps one rank of a world."""

    def __init__(self, name: str, folder: str, door: Door, links: Sequence[Link], live: bool, forks: bool) -> None:
        super().__init__(folder)
        self.name = name
        self.forks = forks
        self.keeper_title = name
        self.links: list[Link] = []
        self.same_host = True
        self.door = door
        self._live = live
        self._seats: dict[int, RemoteSeat] = {}
        self._numbers = itertools.count()
        self._worlds = itertools.count(1)
        self._events: deque[Seat | LostLauncher] = deque()
        self._selector = selectors.DefaultSelector()
        self._listening = False
        self._woken, self._waker = os.pipe()  # readable if something came while an answer was awaited
        self._selector.register(self._woken, selectors.EVENT_READ)
        for link in links:
            self.add(link)

    def add(self, link: Link) -> None:
        """Add a keeper."""
        self.links.append(link)
        self._selector.register(link.channel, selectors.EVENT_READ, link)
        link.wake = self._wake
        self.same_host = self.same_host and link.same_host
        self.spans_hosts = self.spans_hosts or not link.same_host

    def alive(self) -> list[Link]:
        """Return the keepers that are not lost."""
        return [link for link in self.links if not link.lost]

    def fileno(self) -> int:
        return self._selector.fileno()

    def cannot_start(self, size: int) -> str:
        count = len(self.links)
        return f"needs {ranks(size)}, {self.name} has {count}" if size > count else ""

    # --- start and end -----------------------------------------------------------------------------

    def start(self, size: int, leases: Sequence[int] = ()) -> list[RemoteSeat]:
        links = self.alive()[:size]
        if len(links) < size:
            lost = "; ".join(link.lost for link in self.links if link.lost)
            raise MisuseError(f"it needs {ranks(size)}, and {len(links)} of {len(self.links)} are left: {lost}")
        self._seats = {number: seat for number, seat in self._seats.items() if not seat.closed}
        world = next(self._worlds)
        numbers = [next(self._numbers) for _ in links]
        for rank, (number, link) in enumerate(zip(numbers, links, strict=True)):
            link.send(StartSeat(number, stacks_name(world, rank, size), self._live))
        kinds = [RANK, OUT, ERR] if self._live else [RANK]
        admitted = self.door.admit({(kind, number) for kind in kinds for number in numbers}, _ANSWER)
        return [self._seat(number, link, admitted) for number, link in zip(numbers, links, strict=True)]

    def _seat(self, number: int, link: Link, admitted: dict[Visitor, socket.socket]) -> RemoteSeat:
        connection = admitted.get((RANK, number))
        streams: dict[str, IO[bytes]] = {}
        for kind, name in ((OUT, "out"), (ERR, "err")):
            if (stream := admitted.get((kind, number))) is not None:
                stream.setblocking(False)
                streams[name] = os.fdopen(stream.detach(), "rb", buffering=0)
        if connection is None:
            connection, other = socket.socketpair()
            other.close()
            link.lose(TimeoutError("timed out"))
        seat = RemoteSeat(number, RankChannel(connection, link.clock_ahead), link, streams)
        self._seats[number] = seat
        if link.lost:
            self._lose(link)
        return seat

    def kill(self, seats: Iterable[Seat]) -> None:
        for link, those in self._by_link(seats).items():
            link.send(Kill([seat.number for seat in those if not seat.gone]))

    def close(self) -> None:
        """End all ranks. The keepers stay until ``say_goodbye``."""
        self.before_tidying()
        for link in self.links:
            link.send(Close())
        for link in self.links:
            link.answer(0, Done)
        shutil.rmtree(self.folder, ignore_errors=True)

    def say_goodbye(self, exit_code: int) -> None:
        """Let the keepers end with this exit code, as soon as this process has ended."""
        for link in self.links:
            link.send(Goodbye(exit_code))
        self.door.close()
        self._selector.close()
        os.close(self._woken)
        os.close(self._waker)

    # --- events ------------------------------------------------------------------------------------

    def events(self) -> Iterator[Seat | LostLauncher]:
        self._listening = True
        for key, _ in self._selector.select(0):
            if isinstance(key.data, Link):
                key.data.listen()
            else:
                os.read(self._woken, 1 << 10)
        for link in self.links:
            self._sort(link)
        self._listening = False
        while self._events:
            yield self._events.popleft()

    def _wake(self) -> None:
        if not self._listening:
            os.write(self._waker, b"!")

    def _sort(self, link: Link) -> None:
        """Make events of what a keeper has reported."""
        while link.arrived:
            message = link.arrived.popleft()
            if isinstance(message, Preloaded):
                link.preloading = False
                self.preloading = any(link.preloading and not link.lost for link in self.links)
            elif isinstance(message, LostRanks):
                for seat in self._seats_of(link):
                    self._end(seat, f"{message.reason} (on {link.name})")
            elif (seat_of := self._seats.get(getattr(message, "number", -1))) is None or seat_of.closed:
                continue
            elif isinstance(message, Started):
                seat_of.pid = message.pid
                self._events.append(seat_of)
            elif isinstance(message, Exited):
                # Its last messages come by another connection, which ends with the rank.
                seat_of.channel.read_to_end(_LAST_WORDS)
                seat_of.status = message.status
                self._end(seat_of)
            elif isinstance(message, NotStarted):
                self._end(seat_of, f"{link.name} could not start it: {message.reason}")
        if link.lost:
            self._lose(link)

    def _lose(self, link: Link) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(link.channel)
        for seat in self._seats_of(link):
            self._end(seat, link.lost)

    def _end(self, seat: RemoteSeat, lost: str = "") -> None:
        seat.gone, seat.lost = True, lost
        self._seats.pop(seat.number, None)
        self._events.append(seat)
        self._wake()

    def _seats_of(self, link: Link) -> list[RemoteSeat]:
        return [seat for seat in self._seats.values() if seat.link is link]

    def _by_link(self, seats: Iterable[Seat]) -> dict[Link, list[RemoteSeat]]:
        found: dict[Link, list[RemoteSeat]] = {}
        for seat in seats:
            assert isinstance(seat, RemoteSeat)
            found.setdefault(seat.link, []).append(seat)
        return found

    # --- questions ---------------------------------------------------------------------------------

    def stacks(self, seats: Mapping[int, Seat], native_within: float) -> dict[int, AskedStacks]:
        ranks = {seat.number: rank for rank, seat in seats.items()}
        numbers = {link: [seat.number for seat in those] for link, those in self._by_link(seats.values()).items()}
        # A rank that continues may let others continue: stop the ranks of all keepers, then ask.
        self._ask_all({link: Halt(link.request(), those) for link, those in numbers.items()}, Done)
        questions = {link: AskStacks(link.request(), those, native_within) for link, those in numbers.items()}
        found = dict.fromkeys(seats, AskedStacks(""))
        for answer in self._ask_all(questions, Stacks):
            for number, (text, state, native) in answer.stacks.items():
                found[ranks[number]] = AskedStacks(text, state, native)
        return found

    def _ask_all(self, questions: Mapping[Link, Any], kind: type[Kind]) -> list[Kind]:
        for link, question in questions.items():
            link.send(question)
        answers = [link.answer(question.request, kind) for link, question in questions.items()]
        return [answer for answer in answers if answer is not None]

    def rendezvous(self, first: Seat) -> AbstractContextManager[tuple[str, int]]:
        return self._reserved(first)

    @contextlib.contextmanager
    def _reserved(self, first: Seat) -> Iterator[tuple[str, int]]:
        assert isinstance(first, RemoteSeat)
        link = first.link
        port = link.ask(ReservePort(link.request()), Port)
        if port is None:
            yield "", 0  # the keeper is lost, and rank 0 with it
            return
        try:
            yield link.address, port.port
        finally:
            link.send(FreePort(port.port))

    # --- imports -----------------------------------------------------------------------------------

    def preload(self, order: Preload) -> None:
        for link in self.links:
            link.preloading = not link.lost
            link.send(order)
        self.preloading = True

    def settle(self) -> None:
        while self.preloading:
            waiting = [link for link in self.links if link.preloading and not link.lost]
            self.preloading = bool(waiting)
            if waiting:
                self._selector.select()
                self.catch_up()


def ranks(count: int) -> str:
    return f"{count} rank{'s' if count > 1 else ''}"
