"""The end of a test that gets no world, because it is misused, skipped, or needs what this machine does not have."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import pytest
from _pytest.skipping import Skip, evaluate_skip_marks
from everyrank.declare.job import Job
from everyrank.declare.run_gpus import SKIPPED_FOR, RunGpus
from everyrank.errors import MisuseError
from everyrank.model.outcome import Rule
from everyrank.model.result import TestResult
from everyrank.options import Options
from everyrank.verdict.repeat import repeat_line
from everyrank.verdict.report import refusal


@dataclass
class TestEnd:
    """The end of a test: the reports to log, and its result if another plugin wants it."""

    reports: list[pytest.TestReport]
    result: TestResult | None = None


class WithoutWorld:
    """Decides which tests get no world, and makes their ends."""

    def __init__(self, options: Options, run_gpus: RunGpus, wants_results: bool) -> None:
        self._options = options
        self._run_gpus = run_gpus
        self._wants_results = wants_results

    def end(self, job: Job, impossible: str = "") -> TestEnd | None:
        """Return the end of a test that is skipped, or that cannot run here; None for any other.

        ``impossible`` says why its world can never be started.
        """
        if (skip := _skip_mark(job.item)) is not None:
            return self._skipped(job.item, skip.reason)
        try:
            reason, wants_gpus = self._run_gpus.missing(job)
        except MisuseError as error:
            return self.refused(job.item, str(error))
        if impossible and not reason:
            reason, wants_gpus = impossible, bool(job.needs.least)
        if not reason:
            return None
        required = self._options.require_gpus
        if wants_gpus and job.needs.least <= required and self._run_gpus.are_here(job.needs.type):
            return self.refused(job.item, f"{reason}; with --require-gpus={required} this is not a skip")
        ended = self._skipped(job.item, reason)
        ended.reports[0].user_properties.append((SKIPPED_FOR, reason))
        return ended

    def refused(self, item: pytest.Item, text: str) -> TestEnd:
        return self._plain(item, "failed", refusal(item, text))

    def _skipped(self, item: pytest.Item, reason: str) -> TestEnd:
        path, line, _ = item.location
        return self._plain(item, "skipped", (path, (line or 0) + 1, f"Skipped: {reason}" if reason else "Skipped"))

    def _plain(self, item: pytest.Item, outcome: Any, longrepr: Any) -> TestEnd:
        keywords: Any = dict.fromkeys(item.keywords, 1)
        now = time.time()
        fields: Any = {"start": now, "stop": now, "user_properties": item.user_properties}
        reports = [
            pytest.TestReport(item.nodeid, item.location, keywords, outcome, longrepr, "setup", **fields),
            pytest.TestReport(item.nodeid, item.location, keywords, "passed", None, "teardown", **fields),
        ]
        rule = Rule.SKIPPED if outcome == "skipped" else Rule.REFUSED
        result = TestResult(rule.value, 0, repeat_line(item)) if self._wants_results else None
        return TestEnd(reports, result)


def _skip_mark(item: pytest.Item) -> Skip | None:
    """Return the skip that the marks ask for. Ranks evaluate conditions in texts, and report marks that are wrong."""
    marks = [*item.iter_markers("skipif")]
    conditions = [each for mark in marks for each in (*mark.args, mark.kwargs.get("condition", False))]
    if not all(isinstance(condition, bool) for condition in conditions):
        return None
    try:
        return evaluate_skip_marks(item)
    except (TypeError, pytest.fail.Exception):
        return None
