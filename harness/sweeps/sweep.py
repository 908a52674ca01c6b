"""A sweep: the points of a rank are counted without the fault, then each is tried in a run of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec
from everyrank.model.counts import count
from everyrank.model.fault import Counted, Fault, Made, Plan, PointPart, SweepPart
from everyrank.model.outcome import RULES, Rule
from everyrank.verdict.fates import Fates
from everyrank.verdict.rules import Verdict

#: Runs the test once more: with this plan, within this many seconds, and whether it is the last run.
RunAgain = Callable[[Plan, float, bool], tuple[Verdict, Fates]]

#: A run with the fault may take this many times as long as the one without, and at least this many seconds.
_TIMES, _LEAST = 10.0, 5.0
#: At most this many points at which a test fails are listed.
_LISTED = 20
#: Failures of single points are kept as far as this.
_BRIEF = 300
#: Outcomes of a point that do not count against the test.
_GOOD = ("pass", "not-applicable")


@dataclass(frozen=True)
class Point:
    """A run of the test with the fault at one point."""

    fault: Fault
    made: Made | None
    verdict: Verdict
    fates: Fates

    @property
    def text(self) -> str:
        """Return when the test fails: rank 1 dies at its 4th collective (all_reduce at model.py:88)."""
        return f"{self.fault.text} ({self.made})" if self.made is not None else self.fault.text

    @property
    def outcome(self) -> str:
        if self.verdict.outcome == "passed":
            return "pass"
        if self.verdict.rule is Rule.NO_FAULT and self.fates.cannot_happen(self.fault):
            return "not-applicable"
        return "skipped" if self.verdict.outcome == "skipped" else RULES.get(self.verdict.rule, "fail")

    @property
    def part(self) -> PointPart:
        made = self.made or Made("", "")
        root = self.verdict.root
        brief = root.brief if root is not None else self.verdict.headline
        message = "" if self.outcome == "pass" else brief.partition("\n")[0][:_BRIEF]
        return PointPart(self.fault.number, self.outcome, made.name, made.location, message, self.fates.seconds)


@dataclass(frozen=True)
class Swept:
    """The verdict of a sweep, the fates that it is about, and what was tried."""

    verdict: Verdict
    fates: Fates
    part: SweepPart | None = None

    @property
    def remark(self) -> str:
        """Return a line on what was tried."""
        if self.part is None:
            return ""
        points = self.part.points
        red = sum(point.outcome not in _GOOD for point in points)
        apart = sum(point.outcome == "not-applicable" for point in points)
        lacking = f", and {apart} at which the fault cannot happen" if apart else ""
        return f'"{self.part.fault}": {count(len(points), "run")}, {red} of them red{lacking}'


def sweep(fault: Fault, verdict: Verdict, fates: Fates, again: RunAgain) -> Swept:
    """Try a fault at each point of its rank, after a run without it that ended in this way."""
    if verdict.outcome in ("failed", "error"):
        return Swept(replace(verdict, headline=f"without its fault, too\n{verdict.headline}"), fates)
    record = fates.ranks[fault.rank].record
    if verdict.outcome != "passed" or record is None or record.counted is None:
        return Swept(verdict, fates)
    counted = record.counted.get(fault.point, Counted(0))
    if not counted.number:
        headline = f"the fault did not happen: rank {fault.rank} comes to no {fault.point}"
        return Swept(Verdict(rule=Rule.NO_FAULT, headline=headline), fates)
    limit, points = max(_LEAST, _TIMES * fates.seconds), list[Point]()
    for nth in range(1, counted.number + 1):
        planned = msgspec.structs.replace(fault, number=nth)
        ended, became = again(Plan([planned]), limit, nth == counted.number)
        if ended.rule is Rule.INTERRUPTED:
            return Swept(ended, became)
        made = counted.calls[nth - 1] if nth <= len(counted.calls) else None
        points.append(Point(planned, made, ended, became))
    part = SweepPart(fault.text, [point.part for point in points])
    if all(point.outcome == "not-applicable" for point in points):
        return Swept(points[0].verdict, points[0].fates, part)
    bad = [point for point in points if point.outcome not in _GOOD]
    return Swept(_verdict(bad), bad[0].fates, part) if bad else Swept(verdict, fates, part)


def _verdict(bad: Sequence[Point]) -> Verdict:
    """Return the verdict of the first point, which names all."""
    first = bad[0]
    lines = [f"fails when {point.text}" for point in bad[:_LISTED]]
    lines += [f"and at {count(len(bad) - _LISTED, f'later {first.fault.point}')}"] if len(bad) > _LISTED else []
    lines += ["at the first of them:"] if len(bad) > 1 else []
    return replace(
        first.verdict, outcome="failed", headline="\n".join([*lines, first.verdict.headline]), label=first.fault.text
    )
