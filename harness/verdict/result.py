"""Make the result of a test, and of a collection, for plugins that implement the hooks of everyrank."""

from __future__ import annotations

import linecache
from typing import Any

import pytest
from everyrank.declare.stash import DECLARATION
from everyrank.model.result import BlamePart, LeakPart, RankResult, StancePart, TestResult
from everyrank.options import Options
from everyrank.rollcall import rollcall
from everyrank.stack.frames import Frame, is_users
from everyrank.verdict.fates import Fate, Fates, blamed
from everyrank.verdict.leak_lines import left_behind
from everyrank.verdict.repeat import repeat_line
from everyrank.verdict.report import ReportContext
from everyrank.verdict.rules import Verdict, describe_end, rank_message
from everyrank.wire.messages import Phase

_QUIET = "this multi-rank test made no collective"

#: The most characters of a line of code.
_LONGEST = 200


def test_result(verdict: Verdict, fates: Fates, context: ReportContext) -> TestResult:
    """Return all that is known of a test that had a world, except what its reports hold."""
    stances = [fate.stance for fate in fates.ranks if fate.stance is not None]
    blame = blamed(fates)
    return TestResult(
        rule=verdict.rule.value,
        size=len(fates.ranks),
        repeat=repeat_line(context.job.item),
        world=fates.world,
        passes_alone=context.passes_alone,
        not_kept=fates.not_kept,
        remarks=[_QUIET] if _is_quiet(verdict, fates, context) else [],
        ranks=[_rank(fate) for fate in fates.ranks],
        leaks=[LeakPart(kind, name, sorted(counts)) for (kind, name), counts in left_behind(fates).items()],
        rollcall=[
            StancePart(
                ranks=[stance.rank for stance in group],
                doing=doing,
                frames=[f"{frame.function} at {frame}" for frame in rollcall.until_pytest(group[0].stack)],
                code=[_code(frame) for frame in rollcall.until_pytest(group[0].stack)],
                native=list(next((stance.native for stance in group if stance.native), ())),
            )
            for doing, group in rollcall.groups(stances, blame)
        ],
        blame=BlamePart(list(blame.ranks), blame.rule) if blame.ranks else None,
    )


def _is_quiet(verdict: Verdict, fates: Fates, context: ReportContext) -> bool:
    """Return whether a test of several ranks passed in whose group no rank did anything."""
    if verdict.outcome != "passed" or len(fates.ranks) < 2:
        return False
    if {"rpc_agent", "warm_rpc_agent"} & set(context.job.declared.fixtures):
        return False  # its ranks have other means
    return all(fate.record is not None and fate.record.quiet for fate in fates.ranks)


def _code(frame: Frame) -> str:
    """Return the line of code at a frame, if it is the user's. A file on another host may be missing here."""
    return linecache.getline(frame.file, frame.line).strip()[:_LONGEST] if is_users(frame.file) else ""


def collected_run(items: list[pytest.Item], options: Options) -> dict[str, Any]:
    """Return the launcher, the seed and the backends of a run with these multi-rank tests."""
    # A misused test has no declaration.
    declared = [item.stash[DECLARATION] for item in items if DECLARATION in item.stash]
    groups = [declaration for declaration in declared if "process_group" in declaration.fixtures]
    return {
        "launcher": options.launcher,
        "seed": options.seed,
        "backends": sorted({declaration.chosen_backend for declaration in groups}),
    }


def _rank(fate: Fate) -> RankResult:
    filed = fate.record.phases if fate.record is not None else fate.early
    bad = next((phase for kind in ("failed", "xfailed", "skipped") for phase in fate.phases(kind)), None)
    return RankResult(
        rank=fate.rank,
        outcome=_outcome(fate, bad),
        phase=bad.when if bad is not None else "" if fate.record is not None else fate.phase,
        text=_text(fate),
        where=bad.location if bad is not None else "",
        seconds=sum(phase.report.get("duration", 0.0) for phase in filed),
        notes=fate.record.notes if fate.record is not None else {},
    )


def _outcome(fate: Fate, bad: Phase | None) -> str:
    if fate.planned_end:
        return "died"
    if fate.record is None:
        return "cut" if fate.cut else "lost"
    if fate.record.trouble or fate.out_of_order:
        return "failed"
    if bad is not None:
        return "skipped" if bad.outcome == "skipped" else "failed"
    return "passed"


def _text(fate: Fate) -> str:
    """Return a line on a rank; its location has a field of its own, so it is left out where it would come last."""
    if fate.record is None:
        message = rank_message(fate)
        return f"{message}; then {describe_end(fate)}" if message else describe_end(fate)
    if fate.planned_end:
        return fate.planned_end
    trouble = fate.record.trouble.strip().rsplit("\n", 1)[-1]
    return trouble or rank_message(fate, located=False) or fate.out_of_order
