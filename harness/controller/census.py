"""Decide when to ask ranks whether they can continue: once their whole world has stood still for about a second."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from everyrank.controller import stillness
from everyrank.launch.sleep import Thread, sleep_of, sleeps_for_ever
from everyrank.wire.messages import Order, WitnessStatement
from everyrank.wire.witness_pipe import ask, path

#: The interval between two looks at the processes of a world, in seconds; and the number of equal looks in a row
#: after which the ranks are asked.
_EVERY = 0.3
_LOOKS = 4
#: Looks may take at most this share of the controller's time.
_SHARE = 0.1
#: The time in which a witness goes back to sleep after its answer, in seconds.
_SOON = 0.01
#: A world whose main threads poll moves all the time. After answers that decide nothing, it is asked again after this
#: many seconds, then after twice as many, and so on.
_AGAIN = 2.0
#: A world that rests for so many seconds, for reasons that are not certain, is reported once.
LONG_REST = 30.0
#: Witnesses must answer within this many seconds. They cannot if the main thread holds the GIL.
_ANSWER = 1.0


class Census:
    """Watches whether the world of one test stands still, and asks its ranks."""

    def __init__(self, run_folder: str, test: int) -> None:
        self.next_at = time.monotonic() + _EVERY
        self._folder = run_folder
        self._test = test
        self._looks: list[stillness.Look] = []
        self._heard: dict[int, WitnessStatement] = {}
        self._asked_at: float | None = None
        # After answers that decide nothing, the world is not asked again until it moves.
        self._answered: stillness.Look | None = None
        self._again, self._again_at = _AGAIN, 0.0
        self._rest: stillness.Look | None = None  # the first look at a world that has done hardly anything since
        self._last_heard: dict[int, WitnessStatement] = {}
        self._reported, self._awake = False, 0

    @classmethod
    def for_orders(cls, orders: Sequence[Order]) -> Census | None:
        """Make a census for a world with a group of gloo and two ranks or more; return None for others."""
        if len(orders) < 2 or orders[0].backend != "gloo":
            return None
        return cls(os.path.dirname(orders[0].folder), orders[0].number)

    def forget(self, now: float) -> None:
        """Start again, since something has happened."""
        self._looks, self._heard, self._asked_at = [], {}, None
        self.next_at = now + _EVERY

    def hear(self, rank: int, statement: WitnessStatement) -> None:
        if self._asked_at is not None and statement.test == self._test:
            self._heard[rank] = statement
            self.next_at = time.monotonic() + _SOON

    def turn(self, pids: Mapping[int, int | None], ended: Collection[int]) -> dict[int, WitnessStatement] | None:
        """Return the statements of these ranks if their world stood still before it was asked, and since; or None.

        ``ended``: ranks that wait for an order. Their main threads are woken by what their own witnesses send: a
        write to a socket also wakes, without need, a thread that reads from the writer's own end.
        """
        now = time.monotonic()
        if now < self.next_at:
            return None
        # Time in which this process came too late, or was stopped, is no rest of its ranks.
        if self._rest is not None:
            self._rest = replace(self._rest, time=self._rest.time + now - self.next_at)
        look = stillness.look(pids.values(), now)
        took = time.monotonic() - now
        self.next_at = now + max(_EVERY, took / _SHARE)
        self._note_rest(look)
        if self._asked_at is not None:
            return self._listen(look, pids, ended)
        if look is None:
            self.forget(now)
        else:
            self._watch(look, pids)
        return None

    def long_rest(self) -> dict[int, WitnessStatement] | None:
        """Return, once, what the ranks last stated if their world has rested for long: it may hang."""
        rested = self._rest is not None and time.monotonic() - self._rest.time >= LONG_REST
        if self._reported or not rested or not self._last_heard:
            return None
        self._reported = True
        return self._last_heard

    def _note_rest(self, look: stillness.Look | None) -> None:
        # A thread that polls is awake in one look of a hundred, but not in two in a row.
        self._awake = self._awake + 1 if look is None and self._asked_at is None else 0
        if self._awake > 1:
            self._rest, self._last_heard = None, {}
        elif look is not None and (self._rest is None or not look.rests_since(self._rest)):
            self._rest, self._last_heard = look, {}

    def _watch(self, look: stillness.Look, pids: Mapping[int, int | None]) -> None:
        if self._looks and not look.still_since(self._looks[0], may_poll=True):
            self._looks = []
        elif self._looks and not look.still_since(self._looks[0]) and look.still_since(self._looks[-1]):
            self._looks = self._looks[-1:]  # a thread has gone on for a moment: it does not poll
        self._looks.append(look)
        asked_before = self._answered is not None and self._answered.switches == look.switches
        asked_before = asked_before or look.time < self._again_at
        if len(self._looks) >= _LOOKS and not asked_before and look.rests_or_polls_since(self._looks[0]):
            self._asked_at = look.time
            if not all(ask(path(self._folder, pid)) for pid in pids.values()):
                self._answered = look
                self.forget(look.time)

    def _listen(
        self, look: stillness.Look | None, pids: Mapping[int, int | None], ended: Collection[int]
    ) -> dict[int, WitnessStatement] | None:
        """Wait for all answers, and then for one more look: just after its answer, a witness is still awake."""
        now = time.monotonic()
        # Once gloo's loops have had their turn, what a child has sent before it came to rest has arrived.
        if look is not None and self._heard.keys() == pids.keys() and look.loops_turned(self._looks[-1]):
            return self._conclude(look, pids, ended)
        if now > (self._asked_at or 0.0) + _ANSWER:
            self._answered = look
            self.forget(now)
        elif self._heard.keys() == pids.keys():
            self.next_at = now + _SOON
        return None

    def _conclude(
        self, look: stillness.Look, pids: Mapping[int, int | None], ended: Collection[int]
    ) -> dict[int, WitnessStatement] | None:
        heard, before = self._heard, self._looks[0]
        self._last_heard = heard
        self._answered = look
        self.forget(look.time)
        mains = {rank: (pid or 0, pid or 0) for rank, pid in pids.items()}
        if any(look.moved(main, before) for rank, main in mains.items() if rank not in ended):
            self._again_at = look.time + self._again
            self._again *= 2
        witnesses = frozenset((pid or 0, heard[rank].thread) for rank, pid in pids.items())
        idle = frozenset(mains[rank] for rank in ended)
        still = look.still_since(before, excluding=witnesses | idle, may_poll=True) and look.loops_turned(before)
        still = still and look.children <= {pid for statement in heard.values() for pid in statement.idle_children}
        still = still and all(map(sleeps_for_ever, look.unknown - witnesses))
        inside = mains.keys() - set(ended)
        return heard if still and all(_sleeps(heard[rank], mains[rank], look, before) for rank in inside) else None


def _sleeps(statement: WitnessStatement, main: Thread, look: stillness.Look, before: stillness.Look) -> bool:
    """Return whether the kernel shows what a witness states about its main thread's sleep."""
    if look.moved(main, before):
        return statement.sleep == "polls" and look.polled(main, before)
    return statement.sleep not in ("ever", "timed") or sleep_of(main) == statement.sleep
