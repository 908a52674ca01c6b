"""Whether the test of a world has come to a standstill: a census is taken, and what it finds may prove a deadlock."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from everyrank.controller.census import LONG_REST
from everyrank.controller.conversation import Conversation
from everyrank.controller.deadlock import Deadlock, deadlock
from everyrank.controller.survivors import in_the_world
from everyrank.rollcall import rollcall
from everyrank.rollcall.blame import Evidence, blame
from everyrank.rollcall.rollcall import Stance
from everyrank.stack.frames import Frame
from everyrank.wire.messages import WitnessStatement


class Standstill:
    """The standstill of one test; ``report`` takes a line about a world that rests and may go on all the same."""

    def __init__(self, talk: Conversation, report: Callable[[str], None] | None = None) -> None:
        self._talk, self._report = talk, report

    def proof(self, now: float) -> Deadlock | None:
        """Return why no rank that is left can continue, if that is certain."""
        if self._talk.census is None:
            return None
        if not self._all_is_well():
            self._talk.census.forget(now)
            return None
        gone = self._gone()
        ended = frozenset(fate.rank for fate in self._talk.fates.ranks if fate.record is not None) - gone
        pids = {rank: seat.pid for rank, seat in enumerate(self._talk.world.seats) if rank not in gone}
        statements: Mapping[int, WitnessStatement] | None = self._talk.census.turn(pids, ended)
        if statements is not None and gone:
            statements = in_the_world(statements, gone)
        result = deadlock(statements, ended, self._talk.limit.left()) if statements is not None else None
        if result is None and self._report is not None and (heard := self._talk.census.long_rest()) is not None:
            self._report(f"for {LONG_REST:g} s no rank has gone on, and its deadline decides: {rest(heard, ended)}")
        return result

    def _all_is_well(self) -> bool:
        """Return whether all ranks have begun and nothing has gone wrong: only a deadlock can stop such a test."""
        well = self._talk.cut_off.all_is_well and not self._talk.meeting
        well = well and (not self._talk.world.broken or self._talk.fates.was_broken)
        return well and all(fate.phase for fate in self._talk.fates.ranks)

    def _gone(self) -> frozenset[int]:
        """Return the ranks that a fault on purpose has ended, and those that have left since."""
        if not self._talk.fates.was_broken:
            return frozenset()
        return frozenset(rank for rank, seat in enumerate(self._talk.world.seats) if seat.gone or seat.is_ending())


def rest(statements: Mapping[int, WitnessStatement], ended: frozenset[int]) -> str:
    """Describe where the ranks of a world rest, by their witnesses. A signal for a roll call might wake one."""
    stances = [
        Stance(rank, tuple(Frame(*frame) for frame in statement.stack))
        for rank, statement in sorted(statements.items())
        if rank not in ended
    ]
    evidence = [Evidence(rank, ended=True) for rank in sorted(ended)]
    return rollcall.cause(stances, blame([*evidence, *(stance.evidence for stance in stances)]))
