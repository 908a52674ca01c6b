"""What the controller knows of cases: an outcome for each, and a broken adapter told once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from everyrank.suites.case import Case, properties

_FAULT = "the adapter is at fault, not the implementation"

#: The verdicts that a rank could not file an outcome for.
_ENDS = {"deadline": "timeout", "lost": "crash", "silent": "crash", "launcher lost": "crash"}


class Preflight:
    """Watches the first cases of each subject, and gives each case an outcome. A pytest plugin of the controller."""

    def __init__(self, items: Iterable[pytest.Item]) -> None:
        found = {item.nodeid: _case(item) for item in items}
        self._cases = {nodeid: case for nodeid, case in found.items() if case is not None}
        self._well: set[str] = set()
        self._broken: dict[str, str] = {}
        self._ended: dict[str, str] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        case = self._cases.get(item.nodeid)
        first = self._broken.get(case.subject.name) if case is not None else None
        if case is None or first is None:
            return None
        path, line, _ = item.location
        reason = f"Skipped: not run: see {first}"
        keywords: Any = {}
        for report in (
            pytest.TestReport(
                item.nodeid, item.location, keywords, "skipped", (path, (line or 0) + 1, reason), "setup",
                user_properties=[*properties(case), ("outcome", "not-run")],
            ),
            pytest.TestReport(item.nodeid, item.location, keywords, "passed", None, "teardown"),
        ):  # fmt: skip
            item.ihook.pytest_runtest_logreport(report=report)
        return True

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport):  # type: ignore[no-untyped-def]
        # With xdist its controller knows no cases, and hands on what a worker has told already.
        case = self._cases.get(report.nodeid)
        if case is not None:
            said = {str(name): str(value) for name, value in report.user_properties}
            ended = self._ended.get(report.nodeid, "")
            outcome = _outcome(report, said) if not ended or (report.failed and ended == "known") else ended
            if report.failed or outcome == "known":
                self._ended[report.nodeid] = outcome  # its teardown would tell of another rank's
            if outcome != said.get("outcome", ""):
                ours = [*properties(case), ("outcome", outcome)]
                theirs = [one for one in report.user_properties if one[0] not in dict(ours)]
                report.user_properties = [*theirs, *ours]
            self._watch(case.subject.name, report, outcome)
        return (yield)

    def _watch(self, subject: str, report: pytest.TestReport, outcome: Any) -> None:
        if report.failed and (_FAULT in str(report.longrepr) or (outcome == "timeout" and subject not in self._well)):
            self._broken.setdefault(subject, report.nodeid)
        elif report.passed and report.when == "call":
            self._well.add(subject)


def identify(items: Iterable[pytest.Item]) -> None:
    """Let every report of a case say which it is, also where no rank lives to say it."""
    for item in items:
        case = _case(item)
        if case is not None:
            item.user_properties += properties(case)


def _outcome(report: pytest.TestReport, said: dict[str, str]) -> str:
    """What a rank filed, unless the whole world came to another end."""
    filed = said.get("outcome", "")
    if report.failed:
        verdict = said.get("verdict", "")
        return _ENDS.get(verdict) or (filed if filed in ("fail", "stale") else "error")
    if report.when == "call" and hasattr(report, "wasxfail"):
        return "known"
    return filed


def _case(item: pytest.Item) -> Case | None:
    callspec = getattr(item, "callspec", None)
    case = callspec.params.get("case") if callspec is not None else None
    return case if isinstance(case, Case) else None
