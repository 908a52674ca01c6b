"""The controller's part for cases: give each an outcome, and report a broken adapter only once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import pytest
from everyrank.declare.stash import REPEAT, REPEAT_OPTIONS
from everyrank.rpc.agents import NO_NUMPY
from everyrank.suites.engine.case import Case, properties
from everyrank.suites.errors import FAULT, UNUSABLE
from everyrank.suites.generate.options import GENERATE

_NOT_RUN = "not run: see "

#: The outcomes for verdicts of worlds in which no rank could file an outcome.
_ENDS = {"deadline": "timeout", "deadlock": "timeout", "lost": "crash", "silent": "crash", "launcher lost": "crash"}


class Preflight:
    """Watches the first cases of each subject, and gives each case an outcome. A pytest plugin of the controller."""

    def __init__(self, items: Iterable[pytest.Item]) -> None:
        self._items = [item for item in items if _case(item) is not None]
        found = {item.nodeid: _case(item) for item in self._items}
        self._cases = {nodeid: case for nodeid, case in found.items() if case is not None}
        self._well: set[tuple[tuple[str, str], int]] = set()  # the subject and the world size
        self._ended: dict[str, str] = {}
        self._approximate: set[str] = set()

    def pytest_everyrank_result(self, item: pytest.Item, result: dict[str, Any]) -> None:
        """Note what the reports do not say: they are one rank's, and the rank that drives may have died."""
        case, ranks = self._cases.get(item.nodeid), result.get("ranks", ())
        self._approximate.discard(item.nodeid)
        if any(rank["notes"].get("approximate") for rank in ranks):
            self._approximate.add(item.nodeid)
        if case is not None and case.prepared and ranks and all(map(_began, ranks)):
            self._well.add((case.subject_key, case.point.size))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport):  # type: ignore[no-untyped-def]
        # Under xdist the controller knows no cases and passes on the reports of its workers.
        case = self._cases.get(report.nodeid)
        if case is not None:
            filed = {str(name): str(value) for name, value in report.user_properties}
            ended = self._ended.get(report.nodeid, "")
            outcome = _outcome(report, filed) if not ended or (report.failed and ended == "known") else ended
            if outcome == "pass" and report.nodeid in self._approximate:
                outcome = "approximate"
            if report.failed or outcome == "known":
                self._ended[report.nodeid] = outcome  # the report of its teardown may be another rank's
            if outcome != filed.get("outcome", ""):
                ours = [*properties(case), ("outcome", outcome)]
                others = [item for item in report.user_properties if item[0] not in dict(ours)]
                report.user_properties = [*others, *ours]
            if report.passed and report.when == "call":
                self._well.add((case.subject_key, case.point.size))
            if report.failed:
                self._skip_what_would_fail_too(case, report, outcome)
        return (yield)

    def _skip_what_would_fail_too(self, case: Case, report: pytest.TestReport, outcome: str) -> None:
        """Skip the subject's cases that would fail too: all, or those of this world size if it works at another."""
        text, size = str(report.longrepr), case.point.size
        dead = case.prepared and outcome in ("timeout", "crash")
        unused = (case.subject_key, size) not in self._well and (UNUSABLE in text or dead)
        if FAULT in text or NO_NUMPY in text or unused:
            works = FAULT not in text and any(key == case.subject_key for key, _ in self._well)
            self._skip(f"{_NOT_RUN}{report.nodeid}", case.subject_key, size if works else None)

    def _skip(self, reason: str, key: tuple[str, str], size: int | None) -> None:
        """Mark the subject's cases as skipped: the harness starts no world for them. Cases that have run stay."""
        for item in self._items:
            case = self._cases[item.nodeid]
            if case.subject_key == key and size in (None, case.point.size):
                item.add_marker(pytest.mark.skip(reason=reason), append=False)


def _began(rank: dict[str, Any]) -> bool:
    """Return whether a rank reached the law: then its setup, with the plainest use, went well."""
    return rank["phase"] in ("call", "teardown") or rank["outcome"] == "passed"


def identify(items: Iterable[pytest.Item]) -> None:
    """Give every item of a case its properties, for reports without a living rank, and the command to repeat it."""
    for item in items:
        case = _case(item)
        if case is not None:
            item.user_properties += properties(case)
            if case.law.id == GENERATE:
                item.stash[REPEAT_OPTIONS] = case.point.values["plan"].options()
            mark = item.get_closest_marker("conformance")
            if mark is not None and "again" in mark.kwargs:
                again: Callable[[Sequence[str]], str] = partial(mark.kwargs["again"], case.id)
                item.stash[REPEAT] = again


def _outcome(report: pytest.TestReport, filed: dict[str, str]) -> str:
    """Return the outcome that a rank filed, unless the whole world ended otherwise."""
    outcome = filed.get("outcome", "")
    if report.skipped and isinstance(report.longrepr, tuple) and _NOT_RUN in str(report.longrepr[2]):
        return "not-run"
    if report.failed:
        verdict = filed.get("verdict", "")
        return _ENDS.get(verdict) or (outcome if outcome in ("fail", "stale") else "error")
    if report.when == "call" and hasattr(report, "wasxfail"):
        return "known"
    return outcome


def _case(item: pytest.Item) -> Case | None:
    callspec = getattr(item, "callspec", None)
    case = callspec.params.get("case") if callspec is not None else None
    return case if isinstance(case, Case) else None
