"""The controller's part for cases: give each an outcome, and report a broken adapter only once."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from functools import partial
from typing import Any

import pytest
from everyrank.declare.stash import REPEAT, REPEAT_OPTIONS
from everyrank.model.outcome import PhaseEnd, case_ending
from everyrank.rank.context import BROKEN
from everyrank.rpc.agents import NO_NUMPY
from everyrank.suites.engine.case import Case, properties
from everyrank.suites.errors import FAULT, MISSING, STATED, UNUSABLE
from everyrank.suites.options import GENERATE, PLAN


class Usability:
    """Watches the first cases of each subject, and gives each case an outcome. A pytest plugin of the controller."""

    def __init__(self, items: Iterable[pytest.Item]) -> None:
        self._items = [item for item in items if case_of(item) is not None]
        cases = {item.nodeid: case_of(item) for item in self._items}
        self._cases = {nodeid: case for nodeid, case in cases.items() if case is not None}
        self._well: set[tuple[tuple[str, str], int]] = set()  # the subject and the world size
        self._left_out: set[str] = set()  # the ids of cases that were not tried, since they would fail too
        self._missing: dict[tuple[str, str], set[str]] = {}  # what each subject lacks and does not declare

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, Any, Any]:
        """Before ranks are forked, import what the first optimizer of each would import. A collection needs none."""
        if not session.config.option.collectonly:
            importlib.import_module("torch._dynamo")
        return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_everyrank_result(
        self, item: pytest.Item, result: dict[str, Any], reports: list[pytest.TestReport]
    ) -> None:
        """Give a case its outcome. Its reports are one rank's, and the rank that drives may have died."""
        case, ranks = self._cases.get(item.nodeid), result.get("ranks", ())
        if case is None:
            return
        skipped = item.nodeid in self._left_out and any(report.skipped for report in reports)
        outcome = "not-run" if skipped else _outcome(result["rule"], reports, ranks)
        if lacking := next((rank["notes"][MISSING] for rank in ranks if MISSING in rank["notes"]), None):
            self._skip_what_needs(item, case, lacking)
        if outcome:
            further = _missing(case, outcome, self._missing.get(case.subject_key, ()))
            further += stated(outcome, reports, ranks)
            _file(case, outcome, reports, further)
        reached = case.prepared and bool(ranks) and all(map(_began, ranks))
        if reached or any(report.passed and report.when == "call" for report in reports):
            self._well.add((case.subject_key, case.point.size))
        if any(report.failed for report in reports):
            self._skip_what_would_fail_too(
                item, case, outcome, {str(rank["notes"].get(BROKEN, "")) for rank in ranks}
            )

    def _skip_what_needs(self, failed: pytest.Item, case: Case, names: Iterable[str]) -> None:
        """Skip the subject's cases that need what it turned out to lack: that one case has failed for all."""
        lacking = self._missing.setdefault(case.subject_key, set())
        lacking.update(names)
        for item in self._items:
            other = self._cases[item.nodeid]
            if other.subject_key == case.subject_key and (needs := lacking & set(other.needs)) and item is not failed:
                self._left_out.add(item.nodeid)
                reason = f"not tried: no {' and no '.join(sorted(needs))}: see {failed.nodeid}"
                item.add_marker(pytest.mark.skip(reason=reason), append=False)

    def _skip_what_would_fail_too(self, item: pytest.Item, case: Case, outcome: str, broken: set[str]) -> None:
        """Skip the subject's cases that would fail too: all, or those of this world size if it works at another."""
        size = case.point.size
        dead = case.prepared and outcome in ("timeout", "crash")
        unused = (case.subject_key, size) not in self._well and (UNUSABLE in broken or dead)
        if FAULT in broken or NO_NUMPY in broken or unused:
            works = FAULT not in broken and any(key == case.subject_key for key, _ in self._well)
            self._skip(item.nodeid, case.subject_key, size if works else None)

    def _skip(self, failed: str, key: tuple[str, str], size: int | None) -> None:
        """Mark the subject's cases as skipped: the harness starts no world for them. Cases that have run stay."""
        for item in self._items:
            case = self._cases[item.nodeid]
            if case.subject_key == key and size in (None, case.point.size):
                self._left_out.add(item.nodeid)
                item.add_marker(pytest.mark.skip(reason=f"not run: see {failed}"), append=False)


def _began(rank: dict[str, Any]) -> bool:
    """Return whether a rank reached the law: then its setup, with the plainest use, went well."""
    return rank["phase"] in ("call", "teardown") or rank["outcome"] == "passed"


def identify(items: Iterable[pytest.Item]) -> None:
    """Give every item of a case its properties, for reports without a living rank, and the command to repeat it."""
    for item in items:
        case = case_of(item)
        if case is not None:
            item.user_properties += properties(case)
            if case.law.id == GENERATE:
                item.stash[REPEAT_OPTIONS] = item.config.stash[PLAN].options()
            mark = item.get_closest_marker("conformance")
            if mark is not None and "again" in mark.kwargs:
                again: Callable[[Sequence[str]], str] = partial(mark.kwargs["again"], case.id)
                item.stash[REPEAT] = again


def _outcome(rule: str, reports: Sequence[pytest.TestReport], ranks: Iterable[dict[str, Any]]) -> str:
    approximate = any(rank["notes"].get("approximate") for rank in ranks)
    phases = [
        PhaseEnd(str(report.when), report.outcome, hasattr(report, "wasxfail"), outcome_of(report))
        for report in reports
    ]
    return case_ending(rule, phases, approximate)


def outcome_of(report: Any) -> str:
    """Return the outcome of a case as its rank or this process has filed it; the report of no case has none."""
    filed = getattr(report, "user_properties", ())
    return next((str(value) for name, value in reversed(filed) if name == "outcome"), "")


def _missing(case: Case, outcome: str, names: Collection[str]) -> list[tuple[str, object]]:
    """Return a property of a case that was not tried for what its subject lacks without declaring it."""
    missing = sorted(set(names) & set(case.claimed)) if outcome in ("error", "not-run") else ()
    return [("missing", " ".join(missing))] if missing else []


def stated(
    outcome: str, reports: Iterable[pytest.TestReport], ranks: Sequence[dict[str, Any]]
) -> list[tuple[str, object]]:
    """Return a property of a case that a ledger could declare: those that state what all of its failed ranks saw."""
    ended = all(rank["outcome"] in ("passed", "skipped", "failed") for rank in ranks)
    only_in_call = [report.when for report in reports if report.failed] == ["call"]
    noted = [rank["notes"].get(STATED) for rank in ranks if rank["outcome"] == "failed"]
    if outcome not in ("fail", "error") or not (ended and only_in_call and noted) or None in noted:
        return []
    return [(STATED, " ".join(name for name in noted[0] if all(name in others for others in noted)))]


def _file(
    case: Case, outcome: str, reports: Iterable[pytest.TestReport], further: Sequence[tuple[str, object]]
) -> None:
    """Give the reports of a case that ran, or that failed, its outcome and its properties."""
    for report in reports:
        if not (report.when == "setup" and report.passed):
            own = [*properties(case), ("outcome", outcome), *further]
            others = [pair for pair in report.user_properties if pair[0] not in dict(own)]
            report.user_properties = [*others, *own]


def case_of(item: pytest.Item) -> Case | None:
    """Return the case that an item runs, or None if it runs none."""
    callspec = getattr(item, "callspec", None)
    case = callspec.params.get("case") if callspec is not None else None
    return case if isinstance(case, Case) else None
