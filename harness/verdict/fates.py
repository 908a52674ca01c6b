"""What became of all ranks in one test, and which of their failures is the root cause."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field, replace

from everyrank.model.counts import count
from everyrank.model.fault import COLLECTIVE, CUTS, DIES, EXITS, FILE, KEY, Counted, Fault, Made, Plan
from everyrank.rollcall.blame import Blame, Evidence, blame
from everyrank.rollcall.rollcall import Stance
from everyrank.verdict.echo import is_echo
from everyrank.verdict.exit_text import exit_text
from everyrank.verdict.mismatch import is_mismatch
from everyrank.wire.messages import Collective, Phase, Record


@dataclass(frozen=True)
class Acted:
    """A fault on purpose that has happened to a rank, and the point at which it did."""

    fault: Fault
    call: Made

    @property
    def text(self) -> str:
        """Return it without its rank: dies at its 3rd collective, all_reduce at model.py:88, as planned."""
        return f"{self.fault.text.partition(' ')[2].partition(' ')[2]}, {self.call}, as planned"


#: What a rank does at its points of each kind.
_VERBS = {COLLECTIVE: "made", FILE: "opened", KEY: "set"}


def _is_end(fault: Fault, status: int) -> bool:
    """Return whether a wait status is that of the planned end."""
    if fault.act == DIES:
        return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.Signals[fault.value]
    return fault.act == EXITS and os.WIFEXITED(status) and os.WEXITSTATUS(status) == int(fault.value)


@dataclass
class Fate:
    """What became of one rank in one test."""

    rank: int
    record: Record | None = None
    early: list[Phase] = field(default_factory=list)  # the bad phases that the rank reported before its record
    status: int | None = None  # the wait status of a process that ended without being killed by us
    lost_with: str = ""  # what it was lost with, and its wait status too: the host that it ran on, say
    ended_at: float | None = None
    phase: str = ""  # the last phase that the rank was in
    stance: Stance | None = None  # its stack when it was cut off
    cut: bool = False  # killed by us, because the world could not finish
    out_of_order: str = ""  # why it did not leave in order after its record
    last_words: str = ""  # the output of a rank that died
    called: Collective | None = None  # its last one with a tensor, if it passed and another rank got too much data
    acted: list[Acted] = field(default_factory=list)  # its faults on purpose that have happened

    def phases(self, outcome: str) -> list[Phase]:
        """Return its phases with this outcome, but one that ended as it was planned."""
        return [phase for phase in self._filed if phase.outcome == outcome and not phase.planned]

    @property
    def _filed(self) -> list[Phase]:
        return self.record.phases if self.record is not None else self.early

    @property
    def planned_end(self) -> str:
        """How it ended by a fault on purpose; an empty text if it lived on, or ended in another way."""
        last = self.acted[-1] if self.acted else None
        if last is None or self.cut:
            return ""
        if self.record is None and self.has_ended:
            return last.text if self.status is not None and _is_end(last.fault, self.status) else ""
        return last.text if any(phase.planned for phase in self._filed) else ""

    @property
    def cut_off(self) -> str:
        """How it lost its connections by a fault on purpose; an empty text if it did not."""
        return next((acted.text for acted in self.acted if acted.fault.act == CUTS), "")

    @property
    def lost(self) -> bool:
        return self.record is None and not self.cut and not self.planned_end

    @property
    def has_ended(self) -> bool:
        """Whether its process ended without being killed by us, as far as we know."""
        return self.status is not None or bool(self.lost_with)

    @property
    def gone_at(self) -> float:
        """When its process ended; infinity if that is not known."""
        return self.ended_at if self.ended_at is not None else float("inf")

    @property
    def skipped(self) -> Phase | None:
        return next(iter(self.phases("skipped")), None)


@dataclass
class Fates:
    """What became of all ranks in one test."""

    ranks: list[Fate]
    deadline: float | None = None  # the deadline, in seconds, if it was missed
    deadline_from: str = ""
    children: dict[int, list[str]] = field(default_factory=dict)  # at the deadline: processes that might act, by rank
    deadlock: str = ""  # why no rank in the test could continue, if that was certain before the deadline
    interrupted: str = ""  # the signal that interrupted the run while ranks were in the test
    launcher_lost: str = ""  # how the launcher itself ended
    keeper: str = "zygote"  # what texts call the process that kept the ranks
    world: int = 0  # the number of the world among those of this pytest process
    seconds: float = 0.0
    began: bool = False  # whether any rank began the test
    broken_before: bool = False  # whether a rank was gone when the orders were given
    waited: str = ""  # the slots that the world had to wait for, if that took long
    not_kept: str = ""  # why the world could not be kept for another test
    late: dict[int, str] = field(default_factory=dict)  # failures in the teardown of wider fixtures, by rank
    plan: Plan | None = None  # the faults on purpose
    setup_only: bool = False  # whether --setup-only leaves out the call

    @property
    def was_broken(self) -> bool:
        """Whether a fault that breaks the world has happened; an exception may be caught, and a signal handled."""
        return any(acted.fault.breaks_the_world for fate in self.ranks for acted in fate.acted)

    @property
    def not_happened(self) -> str:
        """Why a planned fault did not happen; an empty text if all did, or if that is not known."""
        for fault in self.plan.faults if self.plan is not None else ():
            fate = self.ranks[fault.rank]
            if fate.record is None or fate.record.counted is None or fault in (acted.fault for acted in fate.acted):
                continue
            made = fate.record.counted.get(fault.point, Counted(0))
            reason = made.trouble or f"rank {fault.rank} {_VERBS[fault.point]} {count(made.number, fault.point)}"
            return f'the fault did not happen: {reason} ("{fault.text}")'
        return ""

    def cannot_happen(self, fault: Fault) -> bool:
        """Return whether a fault has come to its point, and could not happen there."""
        record = self.ranks[fault.rank].record
        counted = (record.counted or {}).get(fault.point) if record is not None else None
        return counted is not None and bool(counted.trouble)


@dataclass(frozen=True)
class Failure:
    """A failure of one rank, and how it ranks as a root cause."""

    rank: int
    phase: Phase

    @property
    def order(self) -> tuple[bool, bool, float]:
        """Return a sort key. The earliest failure is the root cause; teardowns rank after calls, and echoes last."""
        return (self.is_echo, self.phase.when == "teardown", self.phase.ended_at)

    @property
    def is_echo(self) -> bool:
        """Return whether this is an echo of another rank's end."""
        return is_echo(self.phase.brief)


def end_text(fate: Fate, ranks: int = 1) -> str:
    """Describe how a rank ended that has ended, with a verb for this number of ranks."""
    if fate.status is None:
        return f"{'was' if ranks == 1 else 'were'} lost: {fate.lost_with}"
    return exit_text(fate.status, ranks)


def failures(fates: Fates) -> list[Failure]:
    """Return all failed phases of all ranks, the root cause first."""
    unsorted = [Failure(fate.rank, phase) for fate in fates.ranks for phase in fate.phases("failed")]
    return sorted(unsorted, key=lambda failure: (*failure.order, failure.rank))


def blamed(fates: Fates) -> Blame:
    """Return the ranks to blame, by the evidence in these fates."""
    return blame([_evidence(fate, fates) for fate in fates.ranks if not fate.planned_end])


def _evidence(fate: Fate, fates: Fates) -> Evidence:
    ordered = failures(fates)
    # An echo does not count as evidence against its rank; nor does a teardown that fails after a failed test.
    counts = [failure for failure in ordered if failure.order[:2] == ordered[0].order[:2] and not failure.is_echo]
    troubles = [(failure.phase.ended_at, failure.phase.signature) for failure in counts if failure.rank == fate.rank]
    if fate.lost and fate.has_ended and not is_mismatch(fate.last_words):
        troubles.append((fate.gone_at, end_text(fate)))
    seen = fate.stance.evidence if fate.stance is not None else Evidence(fate.rank)
    ended = fate.record is not None or fate.skipped is not None
    return replace(seen, trouble=min(troubles, default=None), ended=ended)
