"""What the controller knows of cases: an outcome for each, and a broken adapter told once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import pytest
from everyrank.rpc import NO_NUMPY
from everyrank.stash import REPEAT, REPEAT_OPTIONS
from everyrank.suites.case import Case, properties
from everyrank.suites.errors import FAULT, UNUSABLE
from everyrank.suites.generate.options import GENERATE

_NOT_RUN = "not run: see "

#: The verdicts that a rank could not file an outcome for.
_ENDS = {"deadline": "timeout", "deadlock": "timeout", "lost": "crash", "silent": "crash", "launcher lost": "crash"}


class Preflight:
    """Watches the first cases of each subject, and gives each case an outcome. A pytest plugin of the controller."""

    def __init__(self, items: Iterable[pytest.Item]) -> None:
        self._items = [item for item in items if _case(item) is not None]
        found = {item.nodeid: _case(item) for item in self._items}
        self._cases = {nodeid: case for nodeid, case in found.items() if case is not None}
        self._well: set[tuple[tuple[str, str], int]] = set()  # whose, and at which world size
        self._ended: dict[str, str] = {}
        self._approximate: set[str] = set()

    def pytest_everyrank_result(self, item: pytest.Item, result: dict[str, Any]) -> None:
        """What its reports do not say: they are those of one rank, and the rank that drives may have died."""
        case, ranks = self._cases.get(item.nodeid), result.get("ranks", ())
        self._approximate.discard(item.nodeid)
        if any(one["notes"].get("approximate") for one in ranks):
            self._approximate.add(item.nodeid)
        if case is not None and case.prepared and ranks and all(map(_began, ranks)):
            self._well.add((case.whose, case.point.size))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport):  # type: ignore[no-untyped-def]
        # With xdist its controller knows no cases, and hands on what a worker has told already.
        case = self._cases.get(report.nodeid)
        if case is not None:
            said = {str(name): str(value) for name, value in report.user_properties}
            ended = self._ended.get(report.nodeid, "")
            outcome = _outcome(report, said) if not ended or (report.failed and ended == "known") else ended
            if outcome == "pass" and report.nodeid in self._approximate:
                outcome = "approximate"
            if report.failed or outcome == "known":
                self._ended[report.nodeid] = outcome  # its teardown would tell of another rank's
            if outcome != said.get("outcome", ""):
                ours = [*properties(case), ("outcome", outcome)]
                theirs = [one for one in report.user_properties if one[0] not in dict(ours)]
                report.user_properties = [*theirs, *ours]
            if report.passed and report.when == "call":
                self._well.add((case.whose, case.point.size))
            if report.failed:
                self._skip_what_would_fail_too(case, report, outcome)
        return (yield)

    def _skip_what_would_fail_too(self, case: Case, report: pytest.TestReport, outcome: str) -> None:
        """All of a subject that was never seen to work; of one that was, what is of this world size."""
        text, size = str(report.longrepr), case.point.size
        dead = case.prepared and outcome in ("timeout", "crash")
        unused = (case.whose, size) not in self._well and (UNUSABLE in text or dead)
        if FAULT in text or NO_NUMPY in text or unused:
            works = FAULT not in text and any(whose == case.whose for whose, _ in self._well)
            self._skip(f"{_NOT_RUN}{report.nodeid}", case.whose, size if works else None)

    def _skip(self, reason: str, whose: tuple[str, str], size: int | None) -> None:
        """By a mark: the harness starts no world for it. Those that have run do not mind."""
        for item in self._items:
            case = self._cases[item.nodeid]
            if case.whose == whose and size in (None, case.point.size):
                item.add_marker(pytest.mark.skip(reason=reason), append=False)


def _began(rank: dict[str, Any]) -> bool:
    """Whether a rank came to the law, so that its setup, with the plainest use, went well."""
    return rank["phase"] in ("call", "teardown") or rank["outcome"] == "passed"


def identify(items: Iterable[pytest.Item]) -> None:
    """Let every report of a case say which it is, also where no rank lives to say it, and how to run it again."""
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


def _outcome(report: pytest.TestReport, said: dict[str, str]) -> str:
    """What a rank filed, unless the whole world came to another end."""
    filed = said.get("outcome", "")
    if report.skipped and isinstance(report.longrepr, tuple) and _NOT_RUN in str(report.longrepr[2]):
        return "not-run"
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
