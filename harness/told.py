"""A verdict as plain data, for the plugins that implement ``pytest_everyrank_result``."""

from __future__ import annotations

from typing import Any

import pytest
from everyrank import rollcall
from everyrank.leaklines import left_behind
from everyrank.options import Options
from everyrank.record import Phase
from everyrank.repeat import repeat_line
from everyrank.report import Telling
from everyrank.stash import DECLARATION, FIXTURES
from everyrank.verdict import Fate, Fates, Verdict, blamed, end_of, said_by


def test_result(verdict: Verdict, fates: Fates, telling: Telling) -> dict[str, Any]:
    """Return all that is known of a test that had a world, except what its reports hold."""
    stances = [fate.stance for fate in fates.ranks if fate.stance is not None]
    blame = blamed(fates)
    return {
        "rule": verdict.rule,
        "size": len(fates.ranks),
        "world": fates.world,
        "passes_alone": telling.passes_alone,
        "not_kept": fates.not_kept,
        "repeat": repeat_line(telling.item, telling.seed),
        "ranks": [_rank(fate) for fate in fates.ranks],
        "leaks": [
            {"kind": kind, "what": what, "ranks": sorted(counts)}
            for (kind, what), counts in left_behind(fates).items()
        ],
        "rollcall": [
            {
                "ranks": [stance.rank for stance in group],
                "doing": doing,
                "frames": [f"{frame.function} at {frame}" for frame in rollcall.until_pytest(group[0].stack)],
                "native": list(next((stance.native for stance in group if stance.native), ())),
            }
            for doing, group in rollcall.groups(stances, blame)
        ],
        "blame": {"ranks": list(blame.ranks), "rule": blame.rule} if blame.ranks else None,
    }


def result_without_world(rule: str, item: pytest.Item, seed: int) -> dict[str, Any]:
    """Return the same for a test that got no world."""
    return {"rule": rule, "size": 0, "repeat": repeat_line(item, seed)}


def collected(items: list[pytest.Item], options: Options) -> dict[str, Any]:
    """Return what the harness knows of the run."""
    # A misused test has no declaration.
    groups = [item.stash[DECLARATION] for item in items if "process_group" in item.stash.get(FIXTURES, [])]
    return {
        "launcher": options.launcher,
        "seed": options.seed,
        "backends": sorted({one.chosen_backend for one in groups}),
    }


def _rank(fate: Fate) -> dict[str, Any]:
    filed = fate.record.phases if fate.record is not None else fate.early
    bad = next((one for kind in ("failed", "xfailed", "skipped") for one in fate.phases(kind)), None)
    where = bad.location if bad is not None else ""
    return {
        "rank": fate.rank,
        "outcome": _outcome(fate, bad),
        "phase": bad.when if bad is not None else "" if fate.record is not None else fate.phase,
        "text": _text(fate).removesuffix(f" at {where}"),
        "where": where,
        "seconds": sum(phase.report.get("duration", 0.0) for phase in filed),
        "notes": fate.record.notes if fate.record is not None else {},
    }


def _outcome(fate: Fate, bad: Phase | None) -> str:
    if fate.record is None:
        return "cut" if fate.cut else "lost"
    if fate.record.trouble or fate.out_of_order:
        return "failed"
    if bad is not None:
        return "skipped" if bad.outcome == "skipped" else "failed"
    return "passed"


def _text(fate: Fate) -> str:
    if fate.record is None:
        said = said_by(fate)
        return f"{said}; then {end_of(fate)}" if said else end_of(fate)
    trouble = fate.record.trouble.strip().rsplit("\n", 1)[-1]
    return trouble or said_by(fate) or fate.out_of_order
