"""The verdict: one outcome, made of the records of all ranks. The rules are the table ``RULES``.

Green needs proof: silence is never a pass.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from everyrank.model.outcome import Rule
from everyrank.model.ranks import ranks_text
from everyrank.rollcall.kept import why_kept
from everyrank.rollcall.rollcall import cause
from everyrank.verdict.echo import is_echo, left_early
from everyrank.verdict.fates import Fate, Fates, blamed, end_text, failures
from everyrank.verdict.mismatch import called_last, mismatch_text, unequal_sizes
from everyrank.wire.messages import Phase

#: The location in torch's C++ sources where an error was raised; one line has no room for it.
_SOURCE = re.compile(r"\[/\S+?:\d+\] ?")


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The outcome of a test, and the ranks that explain it."""

    rule: Rule
    outcome: str = "failed"  # passed, failed, skipped, xfailed, xpassed, error
    when: str = "call"  # the phase that it is reported in
    headline: str = ""
    lead: int = 0  # the rank whose report is the root cause
    root: Phase | None = None
    alike: tuple[int, ...] = ()  # the ranks that failed in the same way
    others: tuple[str, ...] = ()  # lines for the other ranks
    label: str = ""  # the ranks that failed first, if others did not; for the summary's one line


# --- the rules: each returns its verdict if it applies -----------------------------------------------


def _launcher_lost(fates: Fates) -> Verdict | None:
    if not fates.launcher_lost:
        return None
    headline = f"the {fates.keeper} {fates.launcher_lost}, and all ranks with it"
    return Verdict(rule=Rule.LAUNCHER_LOST, headline=headline)


def _not_run(fates: Fates) -> Verdict | None:
    for fate in fates.ranks:
        if fate.record is not None and fate.record.trouble:
            headline = f"rank {fate.rank} could not run the test:\n{fate.record.trouble}"
            return Verdict(rule=Rule.NOT_RUN, outcome="error", when="setup", headline=headline, lead=fate.rank)
    return None


def _different_items(fates: Fates) -> Verdict | None:
    prints: dict[str, list[int]] = {}
    for fate in fates.ranks:
        if fate.record is not None:
            prints.setdefault(fate.record.fingerprint, []).append(fate.rank)
    if len(prints) < 2:
        return None
    lines = [f"  {ranks_text(ranks)}: {fingerprint}" for fingerprint, ranks in prints.items()]
    headline = "\n".join(["ranks ran different tests", *lines])
    return Verdict(rule=Rule.DIFFERENT_ITEMS, outcome="error", when="setup", headline=headline)


def _lost(fates: Fates) -> Verdict | None:
    lost = sorted((fate for fate in fates.ranks if fate.lost and fate.has_ended), key=lambda fate: fate.gone_at)
    if not lost:
        return None
    first = lost[0]
    failed = failures(fates)
    if failed and not failed[0].is_echo and failed[0].phase.ended_at < first.gone_at:
        return None  # a rank had failed before: that failure caused the death
    alike = [fate.rank for fate in lost if (fate.status, fate.lost_with) == (first.status, first.lost_with)]
    called = {fate.rank: called_last(fate.phases("failed"), fate.called, fate.record) for fate in fates.ranks}
    headline = mismatch_text(first.last_words, first.rank, called) + f"{ranks_text(alike)} of {len(fates.ranks)} "
    headline += end_text(first, len(alike)) + (f" in {first.phase}" if first.phase else "")
    return _of_ranks(Rule.LOST, headline, alike, fates)


def _interrupted(fates: Fates) -> Verdict | None:
    if not fates.interrupted or any(not failure.is_echo for failure in failures(fates)):
        return None  # a rank had failed before: the test did not wait for the interrupt to fail
    late, reason = _unfinished(fates, "interrupted")
    message = f"{fates.interrupted} interrupted the world of {len(fates.ranks)}"
    headline = f"{reason}{message}: {ranks_text(late)} had not finished"
    return _of_ranks(Rule.INTERRUPTED, headline, late, fates)


def _unfinished(fates: Fates, why: str) -> tuple[list[int], str]:
    """Return the ranks that were ended in the test, and a line on what they did, if they answered."""
    cut = [fate for fate in fates.ranks if fate.cut]
    stances = [fate.stance for fate in cut if fate.stance is not None]
    return [fate.rank for fate in cut], f"{cause(stances, blamed(fates))} ({why})\n" if stances else ""


def _deadline(fates: Fates) -> Verdict | None:
    if fates.deadline is None or any(not failure.is_echo for failure in failures(fates)):
        return None  # a rank failed before the deadline: that is why the others did not finish
    late, reason = _unfinished(fates, f"deadline {fates.deadline:g} s")
    phases = {fates.ranks[rank].phase for rank in late}
    phase = f" its {phases.pop()}" if len(phases) == 1 and phases < {"setup", "teardown"} else ""
    headline = (
        f"{reason}the world of {len(fates.ranks)} missed its deadline of {fates.deadline:g} s "
        f"({fates.deadline_from}): {ranks_text(late)} had not finished{phase}"
        f"{why_kept([fate.stance for fate in fates.ranks if fate.stance is not None], fates.children)}"
    )
    return _of_ranks(Rule.DEADLINE, headline, late, fates)


def _deadlock(fates: Fates) -> Verdict | None:
    if not fates.deadlock or any(not failure.is_echo for failure in failures(fates)):
        return None
    cut = [fate.rank for fate in fates.ranks if fate.cut]
    headline = (
        f"{fates.deadlock}\nthe world of {len(fates.ranks)} was deadlocked: {ranks_text(cut)} could never have "
        "continued, so the test ended before its deadline"
    )
    return _of_ranks(Rule.DEADLOCK, headline, cut, fates)


def _failed(fates: Fates) -> Verdict | None:
    ordered = failures(fates)
    if not ordered:
        return None
    if ordered[0].is_echo and (died := _disorder(fates)) is not None:
        ranks = {fate.rank for fate in fates.ranks if fate.out_of_order}
        return replace(died, others=(*died.others, *_others(fates, ranks)))  # its peers only lost the connection
    same = [failure for failure in ordered if failure.phase.signature == ordered[0].phase.signature]
    root = min(same, key=lambda failure: failure.rank)  # which of them was first is chance
    alike = sorted({failure.rank for failure in same})
    size = len(fates.ranks)
    headline, label = f"on {ranks_text(alike)}" if size > 1 else "", ""
    if len(alike) < size:
        headline, label = f"{ranks_text(alike)} of {size} failed first, in {root.phase.when}", ranks_text(alike)
    early = [fate.rank for fate in fates.ranks if fate.record is not None and not fate.phases("failed")]
    headline = left_early(early, alike, root.phase) + headline
    if ordered[0].is_echo:
        causes = [(fate.rank, fate.planned_end or fate.cut_off) for fate in fates.ranks]
        ends = [f"rank {rank}: {cause}" for rank, cause in causes if cause]
        headline = f"{'; '.join(ends)}; the test lets the error out\n{headline}" if ends else headline
    if fates.not_happened:
        headline, label = f"{fates.not_happened}\n{headline}", "the fault did not happen"
    # A rank that failed and then filed no record has a line of its own, too.
    others = _others(fates, {rank for rank in alike if fates.ranks[rank].record is not None})
    return Verdict(
        rule=Rule.FAILED, when=root.phase.when, headline=headline, lead=root.rank, root=root.phase,
        alike=tuple(alike), others=others, label=label,
    )  # fmt: skip


def _some_skipped(fates: Fates) -> Verdict | None:
    skipped = [fate for fate in fates.ranks if fate.skipped is not None]
    lived = [fate for fate in fates.ranks if not fate.planned_end]
    if not skipped or len(skipped) == len(lived):
        return None
    reasons: dict[str, list[int]] = {}
    for fate in skipped:
        assert fate.skipped is not None
        reasons.setdefault(_reason(fate.skipped), []).append(fate.rank)
    lines = [f"{ranks_text(ranks)} skipped: {reason}" for reason, ranks in reasons.items()]
    others = _others(fates, {fate.rank for fate in skipped})
    headline = "ranks disagree: only some of them skipped"
    return Verdict(rule=Rule.SOME_SKIPPED, headline=headline, lead=skipped[0].rank, others=(*lines, *others))


def _reason(phase: Phase) -> str:
    longrepr = phase.report.get("longrepr")
    reason = longrepr[2] if isinstance(longrepr, (list, tuple)) and len(longrepr) == 3 else phase.brief
    return str(reason).removeprefix("Skipped: ")


def _cut(fates: Fates) -> Verdict | None:
    """Apply if no rank failed, but some had to be cut off: a rank left others waiting."""
    cut = [fate.rank for fate in fates.ranks if fate.cut]
    if not cut or any(fate.phases("xfailed") for fate in fates.ranks):
        return None
    headline = f"{ranks_text(cut)} of {len(fates.ranks)} never finished"
    return Verdict(rule=Rule.CUT, headline=headline, lead=cut[0], alike=tuple(cut), others=_others(fates, set()))


def _no_fault(fates: Fates) -> Verdict | None:
    return Verdict(rule=Rule.NO_FAULT, headline=fates.not_happened) if fates.not_happened else None


def _silent(fates: Fates) -> Verdict | None:
    silent = [fate.rank for fate in fates.ranks if fate.lost]
    if not silent:
        return None
    return Verdict(rule=Rule.SILENT, headline=f"{ranks_text(silent)} filed no record", lead=silent[0])


def _all_skipped(fates: Fates) -> Verdict | None:
    first = next((fate.skipped for fate in fates.ranks if fate.skipped is not None), None)
    return Verdict(rule=Rule.ALL_SKIPPED, outcome="skipped", when=first.when) if first is not None else None


def _xfailed(fates: Fates) -> Verdict | None:
    xfailed = [(fate.rank, phase) for fate in fates.ranks for phase in fate.phases("xfailed")]
    if not xfailed:
        return None
    rank, phase = min(xfailed, key=lambda pair: pair[1].when == "teardown")
    if phase.when == "teardown" and _xpassed(fates):
        return None  # the call decides, for it may not pass; the teardown has its own report
    return Verdict(rule=Rule.XFAILED, outcome="xfailed", when=phase.when, lead=rank, root=phase)


def _xpassed(fates: Fates) -> Verdict | None:
    passed = [(fate.rank, phase) for fate in fates.ranks for phase in fate.phases("xpassed") if phase.when == "call"]
    if not passed:
        return None
    rank, phase = next((pair for pair in passed if pair[1].strict_xpass), passed[0])
    if phase.strict_xpass:
        return Verdict(rule=Rule.STRICT_XPASS, lead=rank, root=phase)
    return Verdict(rule=Rule.XPASSED, outcome="xpassed", lead=rank, root=phase)


def _disorder(fates: Fates) -> Verdict | None:
    bad = [fate for fate in fates.ranks if fate.out_of_order]
    if not bad:
        return None
    lines = tuple(f"rank {fate.rank} {fate.out_of_order}" for fate in bad)
    headline = f"{ranks_text([fate.rank for fate in bad])} of {len(fates.ranks)} did not leave in order"
    return Verdict(rule=Rule.DISORDER, headline=headline, lead=bad[0].rank, others=lines)


def _incomplete(fates: Fates) -> Verdict | None:
    complete = ["setup", "teardown"] if fates.setup_only else ["setup", "call", "teardown"]
    for fate in fates.ranks:
        filed = [phase.when for phase in fate.record.phases] if fate.record else []
        if not fate.planned_end and filed != complete:
            headline = f"rank {fate.rank} filed an incomplete record: only {', '.join(filed) or 'nothing'}"
            return Verdict(rule=Rule.INCOMPLETE, headline=headline, lead=fate.rank)
    return None


def _unequal_sizes(fates: Fates) -> Verdict | None:
    headline = unequal_sizes({fate.rank: fate.record.sizes for fate in fates.ranks if fate.record is not None})
    return Verdict(rule=Rule.UNEQUAL_SIZES, headline=headline) if headline else None


def _passed(fates: Fates) -> Verdict | None:
    return Verdict(rule=Rule.PASSED, outcome="passed")


#: The truth table: the first rule that applies decides. Only a world in which every rank filed a complete record and
#: left in order reaches the last row.
RULES: tuple[Callable[[Fates], Verdict | None], ...] = (
    _launcher_lost,
    _not_run,
    _different_items,
    _lost,
    _interrupted,
    _deadline,
    _deadlock,
    _failed,
    _some_skipped,
    _cut,
    _silent,
    _xfailed,
    _disorder,
    _all_skipped,
    _no_fault,
    _incomplete,
    _xpassed,
    _unequal_sizes,
    _passed,
)


def judge(fates: Fates) -> Verdict:
    """Return the verdict of the first rule that applies."""
    return next(verdict for rule in RULES if (verdict := rule(fates)) is not None)


def _of_ranks(rule: Rule, headline: str, ranks: list[int], fates: Fates) -> Verdict:
    """Return the verdict of a rule whose headline names these ranks, the lead first."""
    others = _others(fates, set(ranks))
    return Verdict(rule=rule, headline=headline, lead=ranks[0], alike=tuple(ranks), others=others)


def _others(fates: Fates, named: set[int]) -> tuple[str, ...]:
    """Describe the ranks that the headline does not name: one line for all ranks that did the same."""
    doing: dict[str, list[int]] = {}
    for fate in fates.ranks:
        if fate.rank not in named:
            doing.setdefault(_doing(fate), []).append(fate.rank)
    return tuple(f"{ranks_text(ranks)}: {text}" for text, ranks in sorted(doing.items(), key=lambda item: item[1]))


def _doing(fate: Fate) -> str:
    message = rank_message(fate)
    if fate.record is not None:
        return message or fate.planned_end or "passed"
    return f"{message}; then, in {fate.phase}, {describe_end(fate)}" if message else describe_end(fate)


def describe_end(fate: Fate) -> str:
    """Describe how a rank that filed no record ended."""
    if fate.planned_end:
        return fate.planned_end
    if fate.cut:
        return fate.stance.doing if fate.stance is not None else f"in {fate.phase or 'its start'}"
    return end_text(fate) if fate.has_ended else "silent"


def rank_message(fate: Fate, located: bool = True) -> str:
    """Return what this rank itself reported, and at which line; or in which phase, if no line is the user's."""
    for phase in (*fate.phases("failed"), *fate.phases("xfailed")):
        message = "lost the connection to a peer" if is_echo(phase.brief) else _SOURCE.sub("", phase.brief)
        if phase.location:
            return f"{message} at {phase.location}" if located else message
        return message if phase.when == "call" else f"{message}, in {phase.when}"
    return f"skipped: {_reason(fate.skipped)}" if fate.skipped is not None else ""
