"""Run one test on one world: from the orders to the fates of all ranks."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace

from everyrank.controller.census import Census
from everyrank.controller.deadlock import Deadlock, deadlock
from everyrank.controller.debugger import Debugger, DebugOptions
from everyrank.controller.live_world import LiveWorld, PrintLine
from everyrank.controller.stillness import is_ending, processor_time
from everyrank.launch.protocol import LostLauncher, Seat, read_all
from everyrank.rollcall import rollcall
from everyrank.verdict.rules import Fate, Fates
from everyrank.wire.channel import Closed
from everyrank.wire.messages import (
    ClosedUp,
    CloseUp,
    Deadline,
    DebuggerLeft,
    FromRank,
    Granted,
    Leave,
    LeftWorld,
    Meet,
    Met,
    Order,
    PhaseEnded,
    Record,
    WantsDebugger,
    WitnessStatement,
)

#: After a failure, ranks that are still in the test get this long to finish or to fail, too. Most of
#: them wait for the one that failed, and would wait for ever.
GRACE = 0.4
#: Ranks that are still busy then, or in their teardown, get this long: they may fail in the same way.
BUSY_GRACE = 5.0
#: The time within which a warm world must pass its closing barrier, and any world must leave.
IN_ORDER = 5.0
#: Ranks must begin the test within this; it takes milliseconds, or what imports take in clean interpreters.
START = 120.0
#: What a roll call may take of the 2 s after a deadline.
NATIVE = 1.0


class Attempt:
    """One attempt to run a test. The constructor takes its orders and limits; ``fates`` is the result."""

    def __init__(
        self,
        world: LiveWorld,
        orders: list[Order],
        deadline: float | None,
        deadline_from: str,
        print_line: PrintLine,
        debug: DebugOptions,
    ) -> None:
        self.world = world
        self.orders = orders
        ranks = [Fate(rank) for rank in range(len(orders))]
        self.fates = Fates(ranks, launcher=world.launcher.name, world=world.number)
        self._limit = deadline
        self._deadline_from = deadline_from
        self._print_line = print_line
        self._debugger = Debugger(debug)
        self._trouble_at: float | None = None
        self._skip_at: float | None = None
        self._began_at = 0.0  # when the last rank that has begun the test began it
        self._timed = False  # whether the deadline counts from the test's first phase, or still from the order
        self._meeting: dict[int, Meet] = {}
        self._closed: dict[int, str] = {}
        self._left: dict[int, str] = {}
        self._used: dict[int, float] = {}
        self._used_at_first: dict[int, float] = {}
        self._looked_at = 0.0
        self._census = Census.for_orders(orders)

    # --- the test ----------------------------------------------------------------------------------

    def watch(self) -> Fates:
        """Give the orders and wait until every rank has filed its record, ended, or been cut off."""
        started = time.monotonic()
        # Clean interpreters import and collect first; the deadline counts from the first phase of the test.
        self._due = started + START if self._limit is not None else None
        # Ask this before the first order: after it, the test itself may end a rank.
        self.fates.broken_before = any(seat.pid and is_ending(seat.pid) for seat in self.world.seats)
        for seat, order in zip(self.world.seats, self.orders, strict=True):
            with contextlib.suppress(Closed):
                seat.channel.send(order)
        while self._open():
            self._listen(self._patience())
            self._read_progress()
            if self._debugger.rank is not None:
                continue
            now = time.monotonic()
            if self._due is not None and now >= self._due and self._open():
                self._miss_deadline()
            elif self._open() and (cut := self._to_cut(now)):
                self._cut(cut)
            elif self._open() and (found := self._deadlock(now)):
                self._end_deadlock(found)
        self._end_debugging()
        self._read_progress()
        self.world.show_the_rest(self._print_line)
        self.fates.seconds = time.monotonic() - started
        self.fates.began = any(fate.phase for fate in self.fates.ranks)
        return self.fates

    def _read_progress(self) -> None:
        """Note which phase each rank is in. Ranks send no message for this: they write it to shared memory."""
        first = None
        for fate, seat, order in zip(self.fates.ranks, self.world.seats, self.orders, strict=True):
            when, began = seat.output.progress.phase_of(order.number)
            if when and not fate.cut:  # a rank may go on for a moment between its roll call and its end
                if not fate.phase:
                    self._began_at = max(self._began_at, began)
                fate.phase = when
                first = began if first is None else min(first, began)
        if first is not None and self._limit is not None and not self._timed:
            self._timed = True
            self._due = first + self._limit

    def _open(self) -> list[Fate]:
        """Return the ranks that have neither filed a record, nor ended, nor been cut off."""
        if self.fates.launcher_lost:
            return []
        return [fate for fate in self.fates.ranks if fate.record is None and fate.status is None and not fate.cut]

    def _patience(self) -> float | None:
        """Return how long this loop may wait for an event before it has to look at the clock."""
        if self._debugger.rank is not None:
            return None
        now = time.monotonic()
        times = [self._due] if self._due is not None else []
        if self._limit is not None and not self._timed:
            times.append(now + self._limit)  # a test that begins now must end by then
        if (self._trouble_at or self._skip_at) and any(not fate.phase for fate in self._open()):
            times.append(now + GRACE / 2)  # a rank sends no message when it begins
        if (since := self._bad_since()) is not None:
            times.append(since + BUSY_GRACE)
            if not self._teardowns_only():
                times.append(max(self._looked_at, since) + GRACE / 2)
        if self._census is not None and self._open():
            times.append(max(self._census.next_at, now + 0.001))  # also to notice that all ranks have begun
        future = [due for due in times if due > now]
        if not future:
            return None if not times else 0.05
        return min(future) - now

    def _teardowns_only(self) -> bool:
        return all(fate.phase == "teardown" for fate in self._open())

    def _to_cut(self, now: float) -> list[Fate]:
        """Return the ranks that will not finish any more, because another rank failed, died or skipped."""
        since = self._bad_since()
        if since is None:
            return []
        inside = [fate for fate in self._open() if fate.phase != "teardown"]
        if now >= since + BUSY_GRACE:
            return self._open() if self._trouble_at is not None else inside
        if now < max(self._looked_at, since) + GRACE / 2:
            return []
        self._looked_at = now
        # Ask about every rank: each answer is about the time since the last call.
        done = [self._had_its_chance(fate) for fate in inside]
        return inside if all(done) and now >= since + GRACE else []

    def _bad_since(self) -> float | None:
        """Return when a rank had failed, or else skipped, and all ranks had begun; None before that."""
        since = self._trouble_at if self._trouble_at is not None else self._skip_at
        if since is None or any(not fate.phase for fate in self._open()):
            return None  # a rank that has not begun waits for no other rank: it may be importing
        return max(since, self._began_at)

    def _had_its_chance(self, fate: Fate) -> bool:
        """Return whether a rank is idle, or has used its grace after a failure.

        It is idle if it has used no processor time since the last call and wants none: it waits for another rank. The
        grace is processor time, since a rank may spin. So no rank is cut off because a busy machine made it late.
        """
        used, wants = processor_time(self.world.seats[fate.rank].pid)
        waits = self._used.get(fate.rank) == used and not wants
        self._used[fate.rank] = used
        first = self._used_at_first.setdefault(fate.rank, used)
        return waits or (self._trouble_at is not None and used - first >= GRACE)

    def _miss_deadline(self) -> None:
        begun = any(fate.phase for fate in self.fates.ranks)
        self.fates.deadline = self._limit if begun else START
        self.fates.deadline_from = self._deadline_from if begun else "for a world's start"
        self._cut(self._open(), native=NATIVE)

    def _all_is_well(self) -> bool:
        """Return whether all ranks have begun and nothing has gone wrong: only a deadlock can stop such a test."""
        bad = self._trouble_at is not None or self._skip_at is not None or self.world.broken
        return not bad and not self._meeting and all(fate.phase for fate in self.fates.ranks)

    def _deadlock(self, now: float) -> Deadlock | None:
        """Return why no rank that is left can continue, if that is certain."""
        if self._census is None:
            return None
        if not self._all_is_well():
            self._census.forget(now)
            return None
        ended = frozenset(fate.rank for fate in self.fates.ranks if fate.record is not None)
        statements = self._census.turn([seat.pid for seat in self.world.seats], ended)
        left = self._due - now if self._due is not None else float("inf")
        return deadlock(statements, ended, left) if statements is not None else None

    def _end_deadlock(self, found: Deadlock) -> None:
        self.fates.deadlock = found.cause
        self._cut(self._open())  # the call that each rank waits in is known: native stacks would add nothing
        for fate in self.fates.ranks:
            if fate.stance is not None:
                fate.stance = replace(fate.stance, number=found.numbers.get(fate.rank))

    def _cut(self, cut: list[Fate], native: float = 0.0) -> None:
        """Ask these ranks for their stacks, then end them."""
        seats = {fate.rank: self.world.seats[fate.rank] for fate in cut}
        stances = {stance.rank: stance for stance in rollcall.call(seats, native)}
        for fate in cut:
            fate.cut = True
            fate.stance = stances.get(fate.rank)
            self._keep_last_words(fate)
        self.world.broken = True
        self.world.launcher.kill(list(seats.values()))
        if self._trouble_at is None:
            self._trouble_at = time.monotonic()

    # --- after the test ----------------------------------------------------------------------------

    def close_up(self) -> bool:
        """Let the ranks of a world that is to be kept pass a closing barrier. Return whether all of them passed."""
        if not self._send_to_all(CloseUp()):
            return False
        self._until(lambda: len(self._closed) == len(self.fates.ranks), IN_ORDER)
        for fate in self.fates.ranks:
            problem = self._closed.get(fate.rank, "did not come to the closing barrier")
            if problem:
                fate.out_of_order = problem
        return not any(fate.out_of_order for fate in self.fates.ranks)

    def leave(self) -> None:
        """Let all ranks that filed a record leave, and wait for them."""
        for fate in self.fates.ranks:
            if fate.record is not None:
                with contextlib.suppress(Closed):
                    self.world.seats[fate.rank].channel.send(Leave())
        self._wait_until_left([fate for fate in self.fates.ranks if fate.record is not None])

    def dismiss(self) -> None:
        """End an idle warm world in order."""
        for seat in self.world.seats:
            with contextlib.suppress(Closed):
                seat.channel.send(Leave())
        self._wait_until_left(self.fates.ranks)

    def _wait_until_left(self, filed: list[Fate]) -> None:
        def gone() -> bool:
            return all(fate.rank in self._left or self.world.seats[fate.rank].gone for fate in filed)

        self._until(gone, IN_ORDER)
        for fate in filed:
            if fate.rank in self._left:
                if self._left[fate.rank]:
                    self.fates.late[fate.rank] = self._left[fate.rank]
            elif self.world.seats[fate.rank].status is not None:
                fate.out_of_order = f"ended after its record: {_plain_exit(self.world.seats[fate.rank].status)}"
            elif not self.fates.launcher_lost:
                fate.out_of_order = f"did not leave within {IN_ORDER:g} s of its record"
        self.world.show_the_rest(self._print_line)
        self.world.end()

    def _send_to_all(self, message: CloseUp) -> bool:
        try:
            for seat in self.world.seats:
                seat.channel.send(message)
        except Closed:
            return False
        return True

    def _until(self, done: Callable[[], bool], within: float) -> None:
        until = time.monotonic() + within
        while not done() and not self.fates.launcher_lost and (left := until - time.monotonic()) > 0:
            self._listen(left)

    # --- what comes in -----------------------------------------------------------------------------

    def _listen(self, timeout: float | None) -> None:
        for key, _ in self.world.selector.select(timeout):
            if key.data is None:
                for event in self.world.launcher.events():
                    self._take_event(event)
            elif isinstance(key.data, tuple):
                rank, name = key.data
                self.world.pass_on(rank, name, self._print_line)
            else:
                self._receive(key.data)

    def _take_event(self, event: Seat | LostLauncher) -> None:
        if isinstance(event, LostLauncher):
            self.fates.launcher_lost = event.reason
            self.world.broken = True
            return
        if event not in self.world.seats or event.status is None:
            return
        rank = self.world.seats.index(event)
        self._receive(rank)  # it may have filed its record before it ended
        fate = self.fates.ranks[rank]
        self.world.broken = True
        if fate.record is None and not fate.cut:
            fate.status = event.status
            fate.ended_at = time.monotonic()
            self._keep_last_words(fate)
            if rank == self._debugger.rank:
                self._end_debugging()
            self._trouble_at = self._trouble_at or fate.ended_at
            self._dissolve_meeting()

    def _receive(self, rank: int) -> None:
        channel = self.world.seats[rank].channel
        try:
            for message in channel.arrived():
                self._take(rank, message)
        except Closed:
            self.world.stop_listening(rank)

    def _take(self, rank: int, message: FromRank) -> None:
        fate = self.fates.ranks[rank]
        if isinstance(message, PhaseEnded):
            fate.early.append(message.phase)
            if message.phase.outcome == "skipped":
                self._skip_at = self._skip_at or time.monotonic()
            elif message.phase.when != "teardown":
                self._trouble_at = self._trouble_at or time.monotonic()
        elif isinstance(message, Record):
            fate.record = message
            if rank == self._debugger.rank:
                self._end_debugging()
            if message.ended_badly:
                self._trouble_at = self._trouble_at or time.monotonic()
            self._dissolve_meeting()
        elif isinstance(message, Deadline):
            self._timed = True
            self._due = time.monotonic() + message.seconds
            self._limit, self._deadline_from = message.seconds, "pytest-timeout"
        elif isinstance(message, WitnessStatement):
            if self._census is not None:
                self._census.hear(rank, message)
        elif isinstance(message, Meet):
            self._meeting[rank] = message
            self._hold_meeting()
        elif isinstance(message, WantsDebugger):
            seat = self.world.seats[rank]
            with contextlib.suppress(Closed):
                seat.channel.send(Granted(self._debugger.ask(rank, message.reason, seat.pid)))
        elif isinstance(message, DebuggerLeft):
            self._end_debugging()
        elif isinstance(message, ClosedUp):
            self._closed[rank] = message.problem
        elif isinstance(message, LeftWorld):
            self._left[rank] = message.problem

    def _end_debugging(self) -> None:
        spent = self._debugger.leave()
        self._due = self._due + spent if self._due is not None else None
        self._trouble_at = self._trouble_at + spent if self._trouble_at is not None else None

    def _hold_meeting(self) -> None:
        ranks = range(len(self.fates.ranks))
        if len(self._meeting) == len(ranks):
            meets = [self._meeting[rank] for rank in ranks]
            self._dismiss(
                Met(
                    [meet.point for meet in meets], [meet.digest for meet in meets], [meet.text for meet in meets], []
                )
            )
        else:
            self._dissolve_meeting()

    def _dissolve_meeting(self) -> None:
        """If a rank has ended its test, it will never come to the meeting: release the ranks that wait for it."""
        missing = [
            fate.rank
            for fate in self.fates.ranks
            if fate.rank not in self._meeting and (fate.record is not None or fate.status is not None)
        ]
        if self._meeting and missing:
            self._dismiss(Met([], [], [], missing))

    def _dismiss(self, met: Met) -> None:
        for rank in self._meeting:
            with contextlib.suppress(Closed):
                self.world.seats[rank].channel.send(met)
        self._meeting.clear()

    def _keep_last_words(self, fate: Fate) -> None:
        output = self.world.seats[fate.rank].output
        texts = [read_all(output.out), read_all(output.err)]
        if fate.stance is None:
            texts.append(rollcall.fatal(read_all(output.stacks)))
        fate.last_words = "\n".join(text.strip("\n") for text in texts if text.strip())


def _plain_exit(status: int | None) -> str:
    if status is None:
        return "unknown exit status"
    if os.WIFSIGNALED(status):
        return f"killed by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"exit code {os.WEXITSTATUS(status)}"
