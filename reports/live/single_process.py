"""Count the single-process tests. A run file has no lines of them, but its footer has their outcomes."""

from __future__ import annotations

from collections import Counter
from typing import Any

from everyrank.reports.runfile.model import SinglePart

#: How many failed tests a footer names.
NAMED = 100


class SingleProcessTests:
    """The counts of single-process tests, taken from their reports."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._failures: set[str] = set()
        self._running: dict[tuple[str, str], list[str]] = {}  # outcomes of the phases so far

    def hear(self, report: Any) -> None:
        """Take a report of a test that is not multi-rank."""
        key = (report.nodeid, getattr(report, "worker_id", ""))
        if report.when not in ("setup", "call", "teardown"):  # xdist's: the worker itself is gone
            self._running = {test: phases for test, phases in self._running.items() if test[0] != report.nodeid}
            self._end(report.nodeid, ["failed"])
            return
        self._running.setdefault(key, []).append(report.outcome)
        if report.when == "teardown":
            self._end(report.nodeid, self._running.pop(key))

    def part(self) -> SinglePart | None:
        """Return the part of the footer. A test that failed and has no teardown counts as failed."""
        for (id, _), phases in self._running.items():
            if "failed" in phases:
                self._end(id, phases)
        self._running.clear()
        if not self._counts:
            return None
        # Sorted: in a run in random order, the first that failed would differ each night.
        names = sorted(self._failures)[:NAMED]
        return SinglePart(self._counts["passed"], self._counts["failed"], self._counts["skipped"], names)

    def _end(self, id: str, phases: list[str]) -> None:
        if "rerun" in phases:
            return  # another attempt follows
        outcome = next((outcome for outcome in ("failed", "skipped") if outcome in phases), "passed")
        self._counts[outcome] += 1
        if outcome == "failed":
            self._failures.add(id)
