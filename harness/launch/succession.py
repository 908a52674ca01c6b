"""A keeper's successor: a fork of the keeper that imports what ranks import, and then starts all further ranks.

The successor does the imports, so that the keeper can start and kill ranks meanwhile. Nothing is lost if an import
hangs, dies or leaves the process unfit to be forked. When the successor is ready, it is a keeper whose controller is
the first: that one passes orders on to it, and its reports back.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections.abc import Callable

import msgspec
from everyrank.patience import CoreWaits, Patience
from everyrank.wire.channel import Channel, Closed, close_all
from everyrank.wire.keepers import (
    Exited,
    FromKeeper,
    Importing,
    Kill,
    NotStarted,
    Preload,
    Preloaded,
    Started,
    StartRank,
    Unsafe,
)

#: At most this many forks find out, for one order, which imports must be left to the ranks.
_ATTEMPTS = 8
#: All of these forks together may take this many times the limit of one.
PATIENCE = 2.0
#: A successor forks a rank within this many seconds of its order, or it is stopped, or hangs.
_FORKS = 10.0

#: Forks a successor that imports these modules and uses this descriptor as its channel. Returns its pid.
ForkSuccessor = Callable[[list[str], int], int]


class Succession:
    """A keeper's side of its successor, which may be missing, on trial, or ready and starting the ranks."""

    def __init__(self, selector: selectors.BaseSelector, report: Callable[[msgspec.Struct], None]) -> None:
        self.pid: int | None = None
        self.ready = False
        self._limit: Patience | None = None  # of a trial; or until the next of the ordered ranks must have started
        self.ranks: dict[int, int] = {}  # the ranks that it has started: number -> pid
        self._ordered: dict[int, list[int]] = {}  # the ranks that it was ordered to start, with their descriptors
        self._selector = selector
        self._report = report
        self._fork: ForkSuccessor
        self._channel: Channel[FromKeeper] | None = None
        self._asked = False  # whether it owes an answer to an order to import
        self._names: list[str] = []
        self._importing = ""
        self._left: list[str] = []
        self._within = 0.0
        self._until = 0.0
        self._attempts = 0

    # --- on trial ----------------------------------------------------------------------------------

    def begin(self, order: Preload, fork: ForkSuccessor | None) -> None:
        """Import these modules before further ranks are started. The answer, Preloaded, comes in any case."""
        if self._channel is not None and self.ready:
            self._asked = True
            with contextlib.suppress(Closed):  # its end will be noticed
                self._channel.send(order)  # it will fork a successor itself
            return
        if self._channel is not None or fork is None:
            self._report(Preloaded())
            return
        self._fork, self._names, self._within = fork, list(order.names), order.within
        self._left, self._attempts, self._until = [], 0, time.monotonic() + PATIENCE * order.within
        self._try()

    def _try(self) -> None:
        self._attempts += 1
        now = time.monotonic()
        if not self._names or self._attempts > _ATTEMPTS or now >= self._until:
            self._report(Preloaded())
            return
        keeper_end, successor_end = socket.socketpair()
        self._channel = Channel(keeper_end, FromKeeper)
        self._importing = ""
        try:
            self.pid = self._fork(self._names, successor_end.fileno())
        except OSError:  # a fork was refused: the ranks import all that themselves
            keeper_end.close()
            self._channel = None
            self._report(Preloaded())
            return
        finally:
            successor_end.close()
        self._selector.register(self._channel, selectors.EVENT_READ, "successor")
        self._limit = Patience(min(self._within, self._until - now))

    def _drop(self) -> None:
        """Leave to the ranks the module whose import failed, and the rest of its package."""
        package = self._importing.partition(".")[0]
        if not any(name.partition(".")[0] == package for name in self._left):
            package = self._importing
        unfit = [name for name in self._names if f"{name}.".startswith(f"{package}.")]
        unfit = unfit or self._names  # it was not the fault of one module
        self._left += unfit
        self._names = [name for name in self._names if name not in set(unfit)]

    # --- reports of the successor ---------------------------------------------------------------------------

    def hear(self) -> bool:
        """Pass on the reports of the successor. Return False if it is gone or unfit, and must be ended."""
        assert self._channel is not None
        try:
            for message in self._channel.arrived():
                match message:
                    case Importing(name):
                        self._importing = name
                    case Unsafe(""):
                        self.ready, self._limit = True, None
                        self._report(Preloaded())
                    case Unsafe():
                        return False
                    case _:
                        self._note(message)
                        self._report(message)
        except Closed:
            return False
        return True

    def _note(self, message: FromKeeper) -> None:
        match message:
            case Started(number) | NotStarted(number):
                close_all(self._ordered.pop(number))
                self._limit = self._fork_limit() if self._ordered else None
                if isinstance(message, Started):
                    self.ranks[number] = message.pid
            case Exited(number):
                self.ranks.pop(number, None)
            case Preloaded():
                self._asked = False

    def patience(self, otherwise: float | None) -> float | None:
        """Return how long the keeper may wait for an event."""
        return otherwise if self._limit is None else self._limit.turn()

    def is_overdue(self) -> bool:
        return self._limit is not None and not self._limit.turn()

    def _fork_limit(self) -> Patience:
        return Patience(_FORKS, CoreWaits([self.pid]))

    def ended(self) -> tuple[dict[int, int], dict[int, list[int]]]:
        """Note that the successor is gone; if it was on trial, try again with fewer imports.

        Return the ranks that it leaves behind, and those that it had not started, with their descriptors.
        """
        assert self._channel is not None
        self._selector.unregister(self._channel)
        self._channel.close()
        on_trial, ranks, ordered = not self.ready, self.ranks, self._ordered
        self._channel, self.pid, self._limit, self.ready, self.ranks, self._ordered = None, None, None, False, {}, {}
        if on_trial:
            self._drop()
            self._try()
        elif self._asked:
            self._asked = False
            self._report(Preloaded())
        return ranks, ordered

    # --- orders to the successor -----------------------------------------------------------

    def start(self, order: StartRank, fds: list[int]) -> bool:
        """Let the successor start a rank of these descriptors, and keep them. Return False if there is none."""
        if not self.ready or self._channel is None:
            return False
        try:
            self._channel.send(order, fds)
        except Closed:
            return False  # its end will be noticed
        self._ordered[order.number] = fds
        self._limit = self._limit or self._fork_limit()
        return True

    def kill(self, numbers: list[int]) -> None:
        passed_on = [number for number in numbers if number in self.ranks or number in self._ordered]
        if self._channel is not None and passed_on:
            with contextlib.suppress(Closed):  # they die with it
                self._channel.send(Kill(passed_on))

    def release(self) -> None:
        """Close everything, in a forked process, which has no part in this."""
        if self._channel is not None:
            self._channel.close()
        for fds in self._ordered.values():
            close_all(fds)
