"""A zygote and its successor: a fork of it that has imported what ranks import, and starts all ranks from then on.

The imports happen in the successor, so that the zygote can go on starting and killing ranks meanwhile, and nothing is
lost where one of them hangs, dies or leaves a process behind that had better not be forked. Once it is ready it is a
keeper like any other, whose controller is the zygote: that hands orders on to it, and its reports back.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections.abc import Callable

import msgspec
from everyrank.channel import Channel, Closed, close_all
from everyrank.record import Exited, FromKeeper, Importing, Kill, Preload, Preloaded, Started, StartRank, Unsafe

#: So many forks may find out which imports are to be left to the ranks, in one go.
_ATTEMPTS = 8
#: All of them together may take so many times what one may.
_PATIENCE = 2.0

#: Forks a successor that is to import these, and to talk over this descriptor. Returns its pid.
ForkSuccessor = Callable[[list[str], int], int]


class Succession:
    """A keeper's side of its successor: none yet, on trial, or the one that starts the ranks now."""

    def __init__(self, selector: selectors.BaseSelector, tell: Callable[[msgspec.Struct], None]) -> None:
        self.pid: int | None = None
        self.ready = False
        self.due: float | None = None  # when a trial must have come to its end
        self.ranks: dict[int, int] = {}  # those that it has started: number -> pid
        self._ordered: dict[int, list[int]] = {}  # those that it was told to start, and what they are made of
        self._selector = selector
        self._tell = tell
        self._fork: ForkSuccessor
        self._channel: Channel[FromKeeper] | None = None
        self._asked = False  # whether it owes an answer to such an order
        self._names: list[str] = []
        self._importing = ""
        self._left: list[str] = []
        self._within = 0.0
        self._until = 0.0
        self._attempts = 0

    # --- on trial ----------------------------------------------------------------------------------

    def begin(self, order: Preload, fork: ForkSuccessor | None) -> None:
        """Have these imported before further ranks are started. The answer, Preloaded, comes in any case."""
        if self._channel is not None and self.ready:
            self._asked = True
            with contextlib.suppress(Closed):  # its end will be heard of
                self._channel.send(order)  # it will have a successor of its own
            return
        if self._channel is not None or fork is None:
            self._tell(Preloaded())
            return
        self._fork, self._names, self._within = fork, list(order.names), order.within
        self._left, self._attempts, self._until = [], 0, time.monotonic() + _PATIENCE * order.within
        self._try()

    def _try(self) -> None:
        self._attempts += 1
        now = time.monotonic()
        if not self._names or self._attempts > _ATTEMPTS or now >= self._until:
            self._tell(Preloaded())
            return
        ours, theirs = socket.socketpair()
        self._channel = Channel(ours, FromKeeper)
        self._importing = ""
        self.pid = self._fork(self._names, theirs.fileno())
        theirs.close()
        self._selector.register(self._channel, selectors.EVENT_READ, "successor")
        self.due = min(now + self._within, self._until)

    def _drop(self) -> None:
        """Leave to the ranks what the trial came to grief with, and what is inside of that package."""
        package = self._importing.partition(".")[0]
        if not any(name.partition(".")[0] == package for name in self._left):
            package = self._importing
        unfit = [name for name in self._names if f"{name}.".startswith(f"{package}.")]
        unfit = unfit or self._names  # it was not the fault of any one
        self._left += unfit
        self._names = [name for name in self._names if name not in set(unfit)]

    # --- what it reports ---------------------------------------------------------------------------

    def hear(self) -> bool:
        """Hand on what the successor reports. False: it is gone, or of no use, and must be ended."""
        assert self._channel is not None
        try:
            for message in self._channel.arrived():
                if isinstance(message, Importing):
                    self._importing = message.name
                elif isinstance(message, Unsafe):
                    if message.reason:
                        return False
                    self.ready, self.due = True, None
                    self._tell(Preloaded())
                else:
                    self._note(message)
                    self._tell(message)
        except Closed:
            return False
        return True

    def _note(self, message: FromKeeper) -> None:
        if isinstance(message, Started):
            self.ranks[message.number] = message.pid
            close_all(self._ordered.pop(message.number))
        elif isinstance(message, Exited):
            self.ranks.pop(message.number, None)
        elif isinstance(message, Preloaded):
            self._asked = False

    def patience(self, otherwise: float | None) -> float | None:
        """How long the keeper may wait for something to happen."""
        return otherwise if self.due is None else max(0.0, self.due - time.monotonic())

    def is_overdue(self) -> bool:
        return self.due is not None and time.monotonic() >= self.due

    def ended(self) -> tuple[dict[int, int], dict[int, list[int]]]:
        """Its process is gone: try again with less, if it was on trial. Returns the ranks that it leaves behind, and
        those that it did not come to start, with their descriptors."""
        assert self._channel is not None
        self._selector.unregister(self._channel)
        self._channel.close()
        on_trial, ranks, ordered = not self.ready, self.ranks, self._ordered
        self._channel, self.pid, self.due, self.ready, self.ranks, self._ordered = None, None, None, False, {}, {}
        if on_trial:
            self._drop()
            self._try()
        elif self._asked:
            self._asked = False
            self._tell(Preloaded())
        return ranks, ordered

    # --- orders that are handed on to it -----------------------------------------------------------

    def start(self, order: StartRank, fds: list[int]) -> bool:
        """Let it start a rank of these, which it may keep. False: the keeper has to do it itself."""
        if not self.ready or self._channel is None:
            return False
        try:
            self._channel.send(order, fds)
        except Closed:
            return False  # its end will be heard of
        self._ordered[order.number] = fds
        return True

    def kill(self, numbers: list[int]) -> None:
        theirs = [number for number in numbers if number in self.ranks or number in self._ordered]
        if self._channel is not None and theirs:
            with contextlib.suppress(Closed):  # they die with it
                self._channel.send(Kill(theirs))

    def release(self) -> None:
        """For a forked process, which has no part in this."""
        if self._channel is not None:
            self._channel.close()
        for fds in self._ordered.values():
            close_all(fds)
