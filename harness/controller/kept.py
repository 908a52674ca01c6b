"""Whether a world may serve another test after one: what a test and its ranks left behind decides."""

from __future__ import annotations

from everyrank.controller.point_to_point import not_received
from everyrank.model.outcome import Rule
from everyrank.model.ranks import ranks_text
from everyrank.verdict.fates import Fates
from everyrank.verdict.leak_lines import leak_lines
from everyrank.verdict.rules import Verdict

#: At most this many reasons why a world is not kept are reported.
_REASONS = 5


def why_not_kept(verdict: Verdict, fates: Fates, may_fail: bool = False) -> str:
    """Return why the world may not serve another test; "" if every rank did well and is as it was before.

    ``may_fail``: the test has a changed collective, and a failure is what is hoped for.
    """
    records = {fate.rank: fate.record for fate in fates.ranks if fate.record is not None}
    expected = may_fail and verdict.rule is Rule.FAILED
    if verdict.outcome == "xfailed":
        expected = all(
            record.keep_if_xfailed
            for record in records.values()
            if any(phase.outcome == "xfailed" for phase in record.phases)
        )
    if verdict.outcome not in ("passed", "skipped") and not expected:
        return "the test ended in an error" if verdict.outcome == "error" else f"the test {verdict.outcome}"
    if any(fate.planned_end for fate in fates.ranks):
        return "a rank died as planned"
    if fates.was_broken:
        return "a fault on purpose has broken it"
    if len(records) < len(fates.ranks):
        return "a rank filed no record"
    reasons: dict[str, list[int]] = {}
    for rank, record in records.items():
        for reason in record.unclean:
            reasons.setdefault(reason, []).append(rank)
    if reasons:
        return _join_some([f"{ranks_text(ranks)} {reason}" for reason, ranks in reasons.items()])
    if leaks := leak_lines(fates):
        return _join_some(leaks)
    counts = {record.collectives for record in records.values()}
    if len(counts) > 1:
        return "the ranks did not all issue the same number of collectives"
    return _join_some(not_received(records))


def _join_some(reasons: list[str]) -> str:
    more = f"; and {len(reasons) - _REASONS} more" if len(reasons) > _REASONS else ""
    return "; ".join(reasons[:_REASONS]) + more
