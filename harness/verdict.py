"""The verdict: the one outcome made of all ranks' records. The rules are the table ``RULES``.

Green needs proof: silence is never a pass.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from everyrank.blame import Blame, Evidence, blame
from everyrank.record import Phase, Record
from everyrank.rollcall import Stance, cause
from everyrank.world import ranks_text

#: What a rank says when it is only the echo of another rank's end.
_ECHO = re.compile(
    r"connection (was )?(closed|reset|refused)|closed by peer|reset by peer|broken pipe|socket closed|\beof\b|"
    r"remote (process|side) (exited|closed)|communicator (was|is) aborted|pipe closed",
    re.IGNORECASE,
)

#: Where in torch's C++ sources an error was raised; of no use in one line.
_SOURCE = re.compile(r"\[/\S+?:\d+\] ?")


@dataclass
class Fate:
    """What became of one rank in one test."""

    rank: int
    record: Record | None = None
    early: list[Phase] = field(default_factory=list)  # what went wrong so far, while there is no record
    status: int | None = None  # of a process that ended by itself, before or without a record
    ended_at: float | None = None
    phase: str = ""  # the phase that it was in last
    stance: Stance | None = None  # where it stood when it was cut off
    cut: bool = False  # ended by us, because the world could not finish
    out_of_order: str = ""  # it filed its record, but did not leave in order
    last_words: str = ""  # what a dying rank left in its streams

    def phases(self, outcome: str) -> list[Phase]:
        filed = self.record.phases if self.record is not None else self.early
        return [phase for phase in filed if phase.outcome == outcome]

    @property
    def lost(self) -> bool:
        return self.record is None and not self.cut

    @property
    def skipped(self) -> Phase | None:
        return next(iter(self.phases("skipped")), None)


@dataclass
class Fates:
    """What became of all ranks in one test."""

    ranks: list[Fate]
    deadline: float | None = None  # the deadline, in seconds, if it was missed
    deadline_from: str = ""
    deadlock: str = ""  # why no rank that was left could go on; nobody waited for the deadline then
    launcher_lost: str = ""  # how the launcher itself ended
    launcher: str = "fork"
    world: int = 0  # its number among the worlds of this pytest process
    seconds: float = 0.0
    began: bool = False  # whether any rank began the test at all
    broken_before: bool = False  # whether a rank was gone when the orders were given
    waited: str = ""  # what the world had to wait for, if that took long
    not_kept: str = ""  # why the world could serve no other test, where it was meant to
    late: dict[int, str] = field(default_factory=dict)  # wider fixtures whose teardown failed, by rank


@dataclass(frozen=True)
class Failure:
    """One rank's failure, as it competes for being the root cause."""

    rank: int
    at: float
    phase: Phase

    @property
    def order(self) -> tuple[bool, bool, float]:
        """The earliest is the root; but an echo never, and a teardown only where no test itself failed."""
        return (self.is_echo, self.phase.when == "teardown", self.at)

    @property
    def is_echo(self) -> bool:
        """An assertion is never one: its words are the user's own."""
        return not self.phase.brief.startswith("AssertionError") and bool(_ECHO.search(self.phase.brief))


@dataclass(frozen=True)
class Verdict:
    """The outcome, and who it is told by."""

    rule: str
    outcome: str  # passed, failed, skipped, xfailed, xpassed, error
    when: str  # the phase that it is reported in
    headline: str = ""
    lead: int = 0  # the rank whose report is the root
    root: Phase | None = None
    alike: tuple[int, ...] = ()  # the ranks that said the same
    others: tuple[str, ...] = ()  # one line for the rest


def exit_text(status: int, ranks: int = 1) -> str:
    """A wait status in words, of so many ranks."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        name = signal.Signals(number).name if number in list(signal.Signals) else f"signal {number}"
        return f"{'was' if ranks == 1 else 'were'} killed by {name}"
    return f"left without a record (exit code {os.WEXITSTATUS(status)})"


def failures(fates: Fates) -> list[Failure]:
    """All failing phases of all ranks, the root cause first."""
    found = [Failure(fate.rank, phase.ended_at, phase) for fate in fates.ranks for phase in fate.phases("failed")]
    return sorted(found, key=lambda failure: (*failure.order, failure.rank))


# --- who is to blame ----------------------------------------------------------------------------------


def blamed(fates: Fates) -> Blame:
    """The ranks to blame, of all that is known of them."""
    return blame([_evidence(fate, fates) for fate in fates.ranks])


def _evidence(fate: Fate, fates: Fates) -> Evidence:
    found = failures(fates)
    # An echo is no trouble of one's own; nor is a teardown that fails after a test that failed.
    counts = [failure for failure in found if failure.order[:2] == found[0].order[:2] and not failure.is_echo]
    troubles = [(failure.at, failure.phase.signature) for failure in counts if failure.rank == fate.rank]
    if fate.lost and fate.status is not None:
        troubles.append((_death(fate), exit_text(fate.status)))
    seen = fate.stance.evidence if fate.stance is not None else Evidence(fate.rank)
    ended = fate.record is not None or fate.skipped is not None
    return replace(seen, trouble=min(troubles, default=None), ended=ended)


# --- the rules: each gives its verdict where it applies -----------------------------------------------


def _launcher_lost(fates: Fates) -> Verdict | None:
    if not fates.launcher_lost:
        return None
    keeper = "zygote" if fates.launcher == "fork" else "keeper of the ranks"
    return Verdict("launcher lost", "failed", "call", f"the {keeper} {fates.launcher_lost}, and all ranks with it")


def _not_run(fates: Fates) -> Verdict | None:
    for fate in fates.ranks:
        if fate.record is not None and fate.record.trouble:
            headline = f"rank {fate.rank} could not run the test"
            return Verdict("not run", "error", "setup", f"{headline}:\n{fate.record.trouble}", fate.rank)
    return None


def _different_items(fates: Fates) -> Verdict | None:
    prints: dict[str, list[int]] = {}
    for fate in fates.ranks:
        if fate.record is not None:
            prints.setdefault(fate.record.fingerprint, []).append(fate.rank)
    if len(prints) < 2:
        return None
    lines = [f"  {ranks_text(ranks)}: {what}" for what, ranks in prints.items()]
    return Verdict("different items", "error", "setup", "ranks ran different tests\n" + "\n".join(lines))


def _lost(fates: Fates) -> Verdict | None:
    lost = sorted((fate for fate in fates.ranks if fate.lost and fate.status is not None), key=_death)
    if not lost:
        return None
    first = lost[0]
    failed = failures(fates)
    if failed and not failed[0].is_echo and failed[0].at < _death(first):
        return None  # somebody raised before that: the death came of it
    assert first.status is not None
    alike = [fate.rank for fate in lost if fate.status == first.status]
    phase = f" in {first.phase}" if first.phase else ""
    headline = f"{ranks_text(alike)} of {len(fates.ranks)} {exit_text(first.status, len(alike))}{phase}"
    return Verdict("lost", "failed", "call", headline, first.rank, None, tuple(alike), _others(fates, set(alike)))


def _death(fate: Fate) -> float:
    return fate.ended_at if fate.ended_at is not None else float("inf")


def _deadline(fates: Fates) -> Verdict | None:
    if fates.deadline is None or any(not failure.is_echo for failure in failures(fates)):
        return None  # a failure before it is why the others did not finish
    cut = [fate for fate in fates.ranks if fate.cut]
    late = [fate.rank for fate in cut]
    phases = {fate.phase for fate in cut}
    what = f" its {phases.pop()}" if len(phases) == 1 and phases < {"setup", "teardown"} else ""
    stances = [fate.stance for fate in cut if fate.stance is not None]
    why = f"{cause(stances, blamed(fates))} (deadline {fates.deadline:g} s)\n" if stances else ""
    headline = (
        f"{why}the world of {len(fates.ranks)} missed its deadline of {fates.deadline:g} s ({fates.deadline_from}): "
        f"{ranks_text(late)} had not finished{what}"
    )
    return Verdict("deadline", "failed", "call", headline, late[0], None, tuple(late), _others(fates, set(late)))


def _deadlock(fates: Fates) -> Verdict | None:
    if not fates.deadlock or any(not failure.is_echo for failure in failures(fates)):
        return None
    cut = [fate.rank for fate in fates.ranks if fate.cut]
    headline = (
        f"{fates.deadlock}\nthe world of {len(fates.ranks)} stood still: {ranks_text(cut)} could never have gone on, "
        "so nobody waited for the deadline"
    )
    return Verdict("deadlock", "failed", "call", headline, cut[0], None, tuple(cut), _others(fates, set(cut)))


def _failed(fates: Fates) -> Verdict | None:
    found = failures(fates)
    if not found:
        return None
    same = [one for one in found if one.phase.signature == found[0].phase.signature]
    root = min(same, key=lambda one: one.rank)  # who said it first among them is chance
    alike = sorted({one.rank for one in same})
    size = len(fates.ranks)
    if len(alike) == size:
        headline = f"on {ranks_text(alike)}" if size > 1 else ""
    else:
        headline = f"{ranks_text(alike)} of {size} failed first, in {root.phase.when}"
    # What became of a rank after its failure is told too, where that was no orderly end.
    others = _others(fates, {rank for rank in alike if fates.ranks[rank].record is not None})
    return Verdict("failed", "failed", root.phase.when, headline, root.rank, root.phase, tuple(alike), others)


def _some_skipped(fates: Fates) -> Verdict | None:
    skipped = [fate for fate in fates.ranks if fate.skipped is not None]
    if not skipped or len(skipped) == len(fates.ranks):
        return None
    reasons: dict[str, list[int]] = {}
    for fate in skipped:
        assert fate.skipped is not None
        reasons.setdefault(_reason(fate.skipped), []).append(fate.rank)
    lines = [f"{ranks_text(ranks)} skipped: {reason}" for reason, ranks in reasons.items()]
    others = _others(fates, {fate.rank for fate in skipped})
    headline = "ranks disagree: only some of them skipped"
    return Verdict("some skipped", "failed", "call", headline, skipped[0].rank, None, (), (*lines, *others))


def _reason(phase: Phase) -> str:
    longrepr = phase.report.get("longrepr")
    reason = longrepr[2] if isinstance(longrepr, (list, tuple)) and len(longrepr) == 3 else phase.brief
    return str(reason).removeprefix("Skipped: ")


def _cut(fates: Fates) -> Verdict | None:
    """Nobody failed, and yet somebody had to be cut off: a rank left others waiting."""
    cut = [fate.rank for fate in fates.ranks if fate.cut]
    if not cut or any(fate.phases("xfailed") for fate in fates.ranks):
        return None
    headline = f"{ranks_text(cut)} of {len(fates.ranks)} never finished"
    return Verdict("cut", "failed", "call", headline, cut[0], None, tuple(cut), _others(fates, set()))


def _silent(fates: Fates) -> Verdict | None:
    silent = [fate.rank for fate in fates.ranks if fate.lost]
    if not silent:
        return None
    return Verdict("silent", "failed", "call", f"{ranks_text(silent)} filed no record", silent[0])


def _all_skipped(fates: Fates) -> Verdict | None:
    first = fates.ranks[0].skipped
    return Verdict("all skipped", "skipped", first.when) if first is not None else None


def _xfailed(fates: Fates) -> Verdict | None:
    for fate in fates.ranks:
        for phase in fate.phases("xfailed"):
            return Verdict("xfailed", "xfailed", phase.when, "", fate.rank, phase)
    return None


def _xpassed(fates: Fates) -> Verdict | None:
    passed = [(fate.rank, phase) for fate in fates.ranks for phase in fate.phases("xpassed") if phase.when == "call"]
    if not passed:
        return None
    rank, phase = next((one for one in passed if one[1].strict_xpass), passed[0])
    if phase.strict_xpass:
        return Verdict("strict xpass", "failed", "call", "", rank, phase)
    return Verdict("xpassed", "xpassed", "call", "", rank, phase)


def _disorder(fates: Fates) -> Verdict | None:
    bad = [fate for fate in fates.ranks if fate.out_of_order]
    if not bad:
        return None
    lines = tuple(f"rank {fate.rank} {fate.out_of_order}" for fate in bad)
    headline = f"{ranks_text([fate.rank for fate in bad])} of {len(fates.ranks)} did not leave in order"
    return Verdict("disorder", "failed", "call", headline, bad[0].rank, None, (), lines)


def _incomplete(fates: Fates) -> Verdict | None:
    for fate in fates.ranks:
        filed = [phase.when for phase in fate.record.phases] if fate.record else []
        if filed != ["setup", "call", "teardown"]:
            told = ", ".join(filed) or "nothing"
            headline = f"rank {fate.rank} filed an incomplete record: only {told}"
            return Verdict("incomplete", "failed", "call", headline, fate.rank)
    return None


def _passed(fates: Fates) -> Verdict | None:
    return Verdict("passed", "passed", "call")


#: The truth table, in the order in which a cause outranks another. The last row is reached only by worlds in
#: which every rank filed a complete record and left in order.
RULES: tuple[Callable[[Fates], Verdict | None], ...] = (
    _launcher_lost,
    _not_run,
    _different_items,
    _lost,
    _deadline,
    _deadlock,
    _failed,
    _some_skipped,
    _cut,
    _silent,
    _xfailed,
    _disorder,
    _all_skipped,
    _incomplete,
    _xpassed,
    _passed,
)


def judge(fates: Fates) -> Verdict:
    """The first rule that applies gives the verdict."""
    return next(verdict for rule in RULES if (verdict := rule(fates)) is not None)


def _others(fates: Fates, told: set[int]) -> tuple[str, ...]:
    """The ranks that are not in the headline, one line for each thing that they were found doing."""
    doing: dict[str, list[int]] = {}
    for fate in fates.ranks:
        if fate.rank not in told:
            doing.setdefault(_doing(fate), []).append(fate.rank)
    return tuple(f"{ranks_text(ranks)}: {what}" for what, ranks in sorted(doing.items(), key=lambda one: one[1]))


def _doing(fate: Fate) -> str:
    said = said_by(fate)
    if fate.record is not None:
        return said or "passed"
    return f"{said}; then, in {fate.phase}, {end_of(fate)}" if said else end_of(fate)


def end_of(fate: Fate) -> str:
    """How a rank that filed no record ended."""
    if fate.cut:
        return fate.stance.doing if fate.stance is not None else f"in {fate.phase or 'its start'}"
    return exit_text(fate.status) if fate.status is not None else "silent"


def said_by(fate: Fate) -> str:
    """What this rank's own reports say, and where; of a fixture that is not the user's, in which phase."""
    for outcome in ("failed", "xfailed", "skipped"):
        for phase in fate.phases(outcome):
            if outcome == "skipped":
                return f"skipped: {_reason(phase)}"
            echo = Failure(fate.rank, phase.ended_at, phase).is_echo
            what = "lost the connection to a peer" if echo else _SOURCE.sub("", phase.brief)
            if phase.location:
                return f"{what} at {phase.location}"
            return what if phase.when == "call" else f"{what}, in {phase.when}"
    return ""
