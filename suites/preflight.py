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
        case = self._cases.get(report.nodeid)
        if case is not None:
            said = dict(report.user_properties)
            # Not where xdist's controller hands on what a worker has told already.
            if "outcome" not in said and (report.failed or (report.when == "call" and hasattr(report, "wasxfail"))):
                said["outcome"] = "known" if not report.failed else _ENDS.get(str(said.get("verdict")), "error")
                report.user_properties += [*properties(case), ("outcome", said["outcome"])]
            self._watch(case.subject.name, report, said.get("outcome", ""))
        return (yield)

    def _watch(self, subject: str, report: pytest.TestReport, outcome: Any) -> None:
        if report.failed and (_FAULT in str(report.longrepr) or (outcome == "timeout" and subject not in self._well)):
            self._broken.setdefault(subject, report.nodeid)
        elif report.passed and report.when == "call":
            self._well.add(subject)


def _case(item: pytest.Item) -> Case | None:
    callspec = getattr(item, "callspec", None)
    case = callspec.params.get("case") if callspec is not None else None
    return case if isinstance(case, Case) else None
