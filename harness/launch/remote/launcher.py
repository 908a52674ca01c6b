"""The launcher of ranks that remote keepers keep."""

from __future__ import annotations

import contextlib
import itertools
import os
import selectors
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence

from everyrank.errors import MisuseError
from everyrank.launch.keeper import remove_traces
from everyrank.launch.local import stacks_name
from everyrank.launch.protocol import AskedStacks, Launcher, LostLauncher, Seat, Shape
from everyrank.launch.remote.admission import admit
from everyrank.launch.remote.door import Door
from everyrank.launch.remote.hosts import RemoteHosts, choose
from everyrank.launch.remote.link import ANSWER, Link, RemoteSeat, ask_stacks
from everyrank.launch.succession import PATIENCE
from everyrank.patience import Patience
from everyrank.wire.keepers import Close, Exited, Kill, NotStarted, Preload, Preloaded, Started
from everyrank.wire.remote import Done, Goodbye, LostRanks, StartSeat

#: What a rank sent before its end arrives within this many seconds of the report of its end.
_LAST_WORDS = 5.0


class RemoteLauncher(Launcher):
    """Ranks of remote keepers. Each keeper keeps one rank of a world."""

    def __init__(self, name: str, folder: str, door: Door, links: Sequence[Link], live: bool, forks: bool) -> None:
        super().__init__(folder)
        self.name = self.keeper_title = name
        self.forks = forks
        self.links: list[Link] = []
        self.hosts: RemoteHosts = RemoteHosts(folder, self.links)
        self.same_host = True
        self.door, self._live = door, live
        self._seats: dict[int, RemoteSeat] = {}
        self._numbers = itertools.count()
        self._worlds = itertools.count(1)
        self._events: deque[Seat | LostLauncher] = deque()
        self._selector = selectors.DefaultSelector()
        self._listening = False
        self._settles = Patience(0.0)  # until the imports of an order have ended, or a keeper hangs
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
        self.hosts.add(link)

    def remove(self, links: Sequence[Link], reason: str) -> None:
        """End the ranks of these keepers, and do without the keepers from now on."""
        self._close_ranks(links)
        for link in links:
            link.send(Goodbye(0))  # without it, a keeper would tidy up after us
            link.lost = link.lost or reason
            self._lose(link)
            self.links.remove(link)
            link.channel.close()

    def alive(self) -> list[Link]:
        """Return the keepers that are not lost."""
        return [link for link in self.links if not link.lost]

    def fit(self, shape: Shape) -> list[Link]:
        """Return the keepers that may have ranks of such a world."""
        return self.alive()

    def fileno(self) -> int:
        return self._selector.fileno()

    def cannot_start(self, shape: Shape) -> str:
        count, nodes = len(self.links), len({link.ready.node for link in self.links})
        if shape.size > count:
            return f"needs {Shape(shape.size)}, {self.name} has {count}"
        if shape.spread and shape.size > nodes:
            return f"needs {shape.size} hosts, {self.name} has {nodes}"
        able = len(choose(self.links, shape))
        return f"needs {shape}, {self.name} has that for {able}" if able < shape.size else ""

    # --- start and end -----------------------------------------------------------------------------

    def start(self, shape: Shape, leases: Sequence[int] = ()) -> list[RemoteSeat]:
        links = choose(self.fit(shape), shape)
        if len(links) < shape.size:
            lost = "; ".join(link.lost for link in self.links if link.lost)
            raise MisuseError(f"it needs {shape}, and {len(links)} of {len(self.links)} are left: {lost}")
        self._seats = {number: seat for number, seat in self._seats.items() if not seat.closed}
        world = next(self._worlds)
        ordered = {next(self._numbers): link for link in links}
        for rank, (number, link) in enumerate(ordered.items()):
            link.send(StartSeat(number, stacks_name(world, rank, shape.size), self._live))
        seats = admit(self.door, ordered, self._live)
        self._seats |= {seat.number: seat for seat in seats}
        for link in links:
            if link.lost:
                self._lose(link)
        return seats

    def kill(self, seats: Iterable[Seat]) -> None:
        for link, those in self._by_link(seats).items():
            link.send(Kill([seat.number for seat in those if not seat.gone]))

    def close(self) -> None:
        """End all ranks. The keepers stay until ``say_goodbye``."""
        self.before_tidying()
        self._close_ranks(self.links)
        remove_traces(self.folder)

    def _close_ranks(self, links: Sequence[Link]) -> None:
        for link in links:
            link.send(Close())
        for link in links:
            link.answer(0, Done)

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
            seat = self._seats.get(getattr(message, "number", -1))
            match message:
                case Preloaded():
                    link.preloading = False
                    self.preloading = any(link.preloading and not link.lost for link in self.links)
                case LostRanks(reason, numbers):
                    for lost in self._seats_of(link):
                        if lost.number in numbers:  # others were ordered later: the next launcher starts them
                            self._end(lost, f"{reason} (on {link.name})")
                case _ if seat is None or seat.closed:
                    pass
                case Started(pid=pid):
                    seat.pid = pid
                    self._events.append(seat)
                case Exited(status=status):
                    # Its last messages come by another connection, which ends with the rank.
                    seat.channel.read_to_end(_LAST_WORDS)
                    seat.status = status
                    self._end(seat)
                case NotStarted(reason=reason):
                    self._end(seat, f"{link.name} could not start it: {reason}")
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
        by_link: dict[Link, list[RemoteSeat]] = {}
        for seat in seats:
            assert isinstance(seat, RemoteSeat)
            by_link.setdefault(seat.link, []).append(seat)
        return by_link

    def stacks(self, seats: Mapping[int, Seat], native_within: float) -> dict[int, AskedStacks]:
        ranks = {seat.number: rank for rank, seat in seats.items()}
        numbers = {link: [seat.number for seat in those] for link, those in self._by_link(seats.values()).items()}
        answers = ask_stacks(numbers, native_within)
        return {rank: answers.get(number, AskedStacks("")) for number, rank in ranks.items()}

    # --- imports -----------------------------------------------------------------------------------

    def preload(self, order: Preload) -> None:
        for link in self.links:
            self.let_import(link, order)

    def let_import(self, link: Link, order: Preload) -> None:
        """Let one keeper import these modules for its further ranks."""
        link.preloading = not link.lost
        link.send(order)
        self.preloading, self._settles = True, Patience(PATIENCE * order.within + ANSWER)

    def settle(self) -> None:
        while self.preloading:
            waiting = [link for link in self.links if link.preloading and not link.lost]
            left = self._settles.turn()
            self.preloading = bool(waiting) and left > 0  # a keeper that hangs is found when it is to start a rank
            if self.preloading:
                self._selector.select(left)
                self.catch_up()
