"""A broken adapter is told once: its other cases are not run."""

from __future__ import annotations

from typing import Any

import pytest
from everyrank.suites.case import Case, properties

_FAULT = "the adapter is at fault, not the implementation"


class Preflight:
    """Watches the first cases of each subject. A pytest plugin of the controller."""

    def __init__(self) -> None:
        self._well: set[str] = set()
        self._broken: dict[str, str] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        case = _case(item)
        first = self._broken.get(case.subject.name) if case is not None else None
        if first is None:
            return None
        path, line, _ = item.location
        reason = f"Skipped: not run: see {first}"
        keywords: Any = {}
        for report in (
            pytest.TestReport(
                item.nodeid, item.location, keywords, "skipped", (path, (line or 0) + 1, reason), "setup",
                user_properties=[*properties(case), ("outcome", "not-run")] if case else [],
            ),
            pytest.TestReport(item.nodeid, item.location, keywords, "passed", None, "teardown"),
        ):  # fmt: skip
            item.ihook.pytest_runtest_logreport(report=report)
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport):  # type: ignore[no-untyped-def]
        said = dict(report.user_properties)
        subject = said.get("subject")
        if isinstance(subject, str) and report.when == "call":
            text = str(report.longrepr) if report.failed else ""
            hangs = "missed its deadline" in text and subject not in self._well
            if _FAULT in text or hangs:
                self._broken.setdefault(subject, report.nodeid)
            elif report.passed:
                self._well.add(subject)
        return (yield)


def _case(item: pytest.Item) -> Case | None:
    callspec = getattr(item, "callspec", None)
    case = callspec.params.get("case") if callspec is not None else None
    return case if isinstance(case, Case) else None
