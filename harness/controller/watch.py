"""Run one test on one world: from the orders to the fates of all ranks."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from everyrank.controller.conversation import Conversation
from everyrank.controller.cutoff import START
from everyrank.controller.deadlock import Deadlock
from everyrank.controller.interrupts import Interrupts
from everyrank.controller.standstill import Standstill
from everyrank.controller.witnesses import ANSWER
from everyrank.launch import children
from everyrank.patience import Patience
from everyrank.rollcall import rollcall
from everyrank.verdict.fates import Fate, Fates
from everyrank.verdict.mismatch import is_mismatch
from everyrank.wire.messages import Order

#: What a roll call may take of the 2 s after a deadline, or after Ctrl-C.
NATIVE = 1.0


class Watch:
    """Watches one test on one world, and ends what cannot go on.

    ``while_asleep`` is work for the time in which the ranks destroy their group. It is done once, if they do.
    ``report`` takes a line about a world that may hang.
    """

    def __init__(
        self,
        talk: Conversation,
        orders: list[Order],
        interrupts: Interrupts,
        while_asleep: Callable[[], None] | None = None,
        report: Callable[[str], None] | None = None,
    ) -> None:
        self.talk = talk
        self.world = talk.world
        self.fates = talk.fates
        self.orders = orders
        self.interrupts = interrupts
        self.while_asleep = while_asleep
        self._standstill = Standstill(talk, report)

    def run(self) -> Fates:
        """Give the orders and wait until every rank has filed its record, ended, or been cut off."""
        started = time.monotonic()
        self.talk.limit.order(started, self.talk.waited_for_cores)
        # Ask this before the first order: after it, the test itself may end a rank.
        self.fates.broken_before = any(seat.is_ending() for seat in self.world.seats)
        with self.interrupts.noted(self.world.selector):
            for order in self.orders:
                self.talk.send(order.rank, order)
            self._listen()
            self._ask_what_was_called()
        self.talk.end_debugging()
        self._read_progress()
        self.talk.show_the_rest()
        self.fates.seconds = time.monotonic() - started
        self.fates.began = any(fate.phase for fate in self.fates.ranks)
        return self.fates

    def _listen(self) -> None:
        """Listen to the ranks until none is left in the test."""
        while self._open():
            self.talk.listen(self._patience())
            if self.talk.destroys_group and self.while_asleep is not None:
                self.while_asleep()
                self.while_asleep = None
            self._read_progress()
            open_ranks = self._open()
            if open_ranks and self.interrupts.name:
                self._interrupt(open_ranks)
            if self.talk.debugging:
                continue
            now = time.monotonic()
            open_ranks = self._open()
            if open_ranks and self.talk.limit.missed(now):
                self._miss_deadline()
            elif cut := self.talk.cut_off.due(open_ranks, now):
                self._cut(cut)
            elif open_ranks and (proof := self._standstill.proof(now)):
                self._end_deadlock(proof)

    def _read_progress(self) -> None:
        """Note which phase each rank is in. Ranks send no message for this: they write it to shared memory."""
        first = None
        for fate, seat, order in zip(self.fates.ranks, self.world.seats, self.orders, strict=True):
            when, began = seat.phase_of(order.number)
            if when and not fate.cut:  # a rank may go on for a moment between its roll call and its end
                if not fate.phase:
                    self.talk.cut_off.began_at = max(self.talk.cut_off.began_at, began)
                fate.phase = when
                first = began if first is None else min(first, began)
        if first is not None:
            self.talk.limit.begin(first)

    def _open(self) -> list[Fate]:
        """Return the ranks that have neither filed a record, nor ended, nor been cut off."""
        if self.fates.launcher_lost:
            return []
        return [fate for fate in self.fates.ranks if fate.record is None and not fate.has_ended and not fate.cut]

    def _patience(self) -> float | None:
        """Return how long this loop may wait for an event before it has to look at the clock."""
        if self.talk.debugging:
            return None
        now = time.monotonic()
        times = [*self.talk.limit.times(now), *self.talk.cut_off.times(self._open(), now)]
        if self.talk.census is not None and self._open():
            times.append(max(self.talk.census.next_at, now + 0.001))  # also to notice that all ranks have begun
        future = [due for due in times if due > now]
        if not future:
            return None if not times else 0.05
        return min(future) - now

    def _interrupt(self, open_ranks: list[Fate]) -> None:
        self.talk.end_debugging()
        if not self._ask_witnesses():
            return
        self.fates.interrupted = self.interrupts.name
        self._cut(self._open(), native=NATIVE, stated=True)

    def _miss_deadline(self) -> None:
        if not self._ask_witnesses():
            return
        begun = any(fate.phase for fate in self.fates.ranks)
        self.fates.deadline = self.talk.limit.seconds if begun else START
        self.fates.deadline_from = self.talk.limit.source if begun else "for a world's start"
        self.fates.children = self._children()
        self._cut(self._open(), native=NATIVE, stated=True)

    def _children(self) -> dict[int, list[str]]:
        """Return the processes that ranks have started and that may act, by rank."""
        if self.talk.witnesses is None:
            return {}
        idle = frozenset(pid for stated in self.talk.witnesses.stated.values() for pid in stated.idle_children)
        named = {rank: children.titles(seat.pid, idle) for rank, seat in enumerate(self.world.seats) if not seat.gone}
        return {rank: titles for rank, titles in named.items() if titles}

    def _ask_witnesses(self) -> bool:
        """Ask what the ranks' main threads and GPUs wait for. Return whether a rank is still in the test.

        This comes before the roll call, whose signal might wake a rank.
        """
        witnesses = self.talk.witnesses
        if witnesses is None:
            return True
        witnesses.ask({fate.rank: self.world.seats[fate.rank].pid for fate in self._open()})
        patience = Patience(ANSWER)
        while self._open() and not witnesses.all_answered() and (left := patience.turn()):
            self.talk.listen(left)
        return bool(self._open())

    def _ask_what_was_called(self) -> None:
        """If gloo has aborted a rank, ask those that passed for their last collective: theirs may be too large."""
        witnesses = self.talk.witnesses
        if witnesses is None or not any(fate.lost and is_mismatch(fate.last_words) for fate in self.fates.ranks):
            return
        passed = [fate for fate in self.fates.ranks if fate.record is not None and not fate.phases("failed")]
        witnesses.ask({fate.rank: self.world.seats[fate.rank].pid for fate in passed})
        patience = Patience(ANSWER)
        while not witnesses.all_answered() and (left := patience.turn()):
            self.talk.listen(left)
        for fate in passed:
            statement = witnesses.stated.get(fate.rank)
            begun = reversed(statement.collectives if statement is not None else [])
            fate.called = next((collective for collective in begun if collective.tensors), None)

    def _end_deadlock(self, proof: Deadlock) -> None:
        self.fates.deadlock = proof.cause
        self._cut(
            self._open(), stated=True
        )  # the call that each rank waits in is known: native stacks would add nothing
        for fate in self.fates.ranks:
            if fate.stance is not None:
                number = proof.numbers.get(fate.rank)
                fate.stance = replace(fate.stance, number=number, misled=fate.rank in proof.misled)

    def _cut(self, cut: list[Fate], native: float = 0.0, stated: bool = False) -> None:
        """Ask these ranks for their stacks, then end them. ``stated``: their witnesses have answered just now."""
        seats = {fate.rank: self.world.seats[fate.rank] for fate in cut}
        stances = {stance.rank: stance for stance in rollcall.call(self.world.launcher, seats, native)}
        for fate in cut:
            fate.cut = True
            fate.stance = stances.get(fate.rank)
            if fate.stance is not None and self.talk.witnesses is not None:
                statement = self.talk.witnesses.stated.get(fate.rank) if stated else None
                fate.stance = fate.stance.stated(statement).on_gpu(self.talk.witnesses.on_nccl(fate.rank))
            self.talk.keep_last_words(fate)
        self.world.broken = True
        self.world.launcher.kill(list(seats.values()))
        self.talk.cut_off.note_trouble(time.monotonic())
