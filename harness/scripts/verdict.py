"""One verdict on the ranks of a script, by the rules for worlds, and its text."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field

import msgspec
from everyrank.model.outcome import Rule
from everyrank.model.ranks import ranks_text
from everyrank.rollcall import rollcall
from everyrank.rollcall.rollcall import Stance
from everyrank.scripts.folder import Raised
from everyrank.stack.frames import Frame
from everyrank.verdict.fates import Fate, Fates, blamed, failures
from everyrank.verdict.rules import Verdict, judge
from everyrank.wire.messages import Phase, Record, WitnessStatement

#: What texts call the time in which a rank runs: the call of a test.
_PHASE = "the script"
_PHASES = ("setup", "call", "teardown")

#: pytorch#190489; docs/facts-of-torch.md.
_ABORTED_AT_THE_END = (
    "killed by SIGABRT after the end of the script: "
    "torch does that now and then if destroy_process_group() was not called"
)


@dataclass
class Seen:
    """What was seen of the ranks of a script."""

    size: int
    raised: dict[int, Raised] = field(default_factory=dict)
    ended_in_order: set[int] = field(default_factory=set)  # not by a signal or os._exit()
    status: dict[int, int | None] = field(default_factory=dict)  # of ranks that have ended; None if it is not known
    ended_at: dict[int, float] = field(default_factory=dict)
    stated: dict[int, WitnessStatement] = field(default_factory=dict)  # what those that live do

    def is_bad(self, rank: int) -> bool:
        """Return whether a rank has ended badly."""
        if rank in self.raised:
            return True
        return rank in self.status and (bool(self.status[rank]) or rank not in self.ended_in_order)


def fates(seen: Seen, deadlock: str = "", orphaned: bool = False) -> Fates:
    """Return what became of the ranks: those that still live are ended. ``orphaned``: torchrun has gone before."""
    interrupted = "the end of torchrun" if orphaned else ""
    return Fates([_fate(rank, seen) for rank in range(seen.size)], deadlock=deadlock, interrupted=interrupted)


def _fate(rank: int, seen: Seen) -> Fate:
    if (raised := seen.raised.get(rank)) is not None:
        phase = Phase(_PHASE, "failed", {}, raised.time, raised.brief, raised.location, raised.signature)
        return Fate(rank, record=_record([phase]), phase=_PHASE)
    if rank not in seen.status:
        stated = seen.stated.get(rank)
        stack = tuple(Frame(*frame) for frame in stated.stack) if stated is not None else ()
        stance = Stance(rank, stack).stated(stated) if stack else None
        return Fate(rank, phase=_PHASE, stance=stance, cut=True)
    if not seen.is_bad(rank):
        return Fate(rank, record=_record([Phase(when, "passed", {}) for when in _PHASES]), phase=_PHASE)
    status = seen.status[rank]
    if status is not None and os.WIFSIGNALED(status):
        if os.WTERMSIG(status) == signal.SIGABRT and rank in seen.ended_in_order:
            return Fate(rank, lost_with=_ABORTED_AT_THE_END, ended_at=seen.ended_at[rank])
        return Fate(rank, status=status, ended_at=seen.ended_at[rank])
    lost_with = "killed by a signal, or by os._exit()" if status is None else f"exit code {os.WEXITSTATUS(status)}"
    return Fate(rank, lost_with=lost_with, ended_at=seen.ended_at[rank])


def _record(phases: list[Phase]) -> Record:
    return Record("", phases, leaks=[], warnings=[], unclean=[], collectives=None)


def text(script: str, fates: Fates) -> str:
    """Return the verdict in words: its headline, the failure, the other ranks, and the roll call."""
    verdict = judge(fates)
    lines = [f"{script} on {len(fates.ranks)} ranks: {_headline(fates, verdict)}"]
    if verdict.root is not None:
        location = f" at {verdict.root.location}" if verdict.root.location else ""
        lines.append(f"{ranks_text(list(verdict.alike))}: {verdict.root.brief}{location}")
    lines += verdict.others
    stances = [fate.stance for fate in fates.ranks if fate.stance is not None]
    if stances:
        lines += ["", "roll call:", rollcall.render(stances, blamed(fates), cause_is_known=True)]
    return "\n".join(lines)


def _headline(fates: Fates, verdict: Verdict) -> str:
    """Return the rule's headline, in the words of a script if a test is its subject."""
    ranks, first = ranks_text(list(verdict.alike)), verdict.headline.partition("\n")[0]
    if verdict.rule is Rule.DEADLOCK:
        return f"{first}\n{ranks} could never have continued, so the script was ended"
    if verdict.rule is Rule.INTERRUPTED:
        return f"{first}\ntorchrun was killed before {ranks} had finished"
    early = [fate.rank for fate in fates.ranks if fate.record is not None and not fate.phases("failed")]
    if verdict.rule is Rule.FAILED and failures(fates)[0].is_echo and early:
        return f"{ranks_text(early)} ended the script before {ranks} had what a collective or a message was to bring"
    return verdict.headline or "all failed"


def of_all(seen: Seen) -> dict[int, WitnessStatement]:
    """Return the statements as a census of all ranks has them: a rank that has ended cannot act any more."""
    return {
        rank: msgspec.structs.replace(statement, may_act="") if rank in seen.status else statement
        for rank, statement in seen.stated.items()
    }
