"""Gather a run's lines in the process that prints, from pytest's reports and the harness's results.

With pytest-xdist that process is its controller, which collects nothing: each worker leaves a list of the tests that
it collected, and the harness's result of a test travels on its last report.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from everyrank.model.result import TestResult
from everyrank.reports.live.line import crash_line, line, not_run_line
from everyrank.reports.live.single_process import SingleProcessTests
from everyrank.reports.runfile.model import CaseLine
from everyrank.reports.runfile.write import encoded

#: The attribute of a test's last report that holds the harness's result, as JSON.
ATTRIBUTE = "everyrank_result"

#: The user properties that a test was collected with, before it runs.
Identity = dict[str, str]


class Collected(msgspec.Struct):
    """The multi-rank tests that one pytest process collected, with the properties of each."""

    run: dict[str, Any]
    ids: list[str]
    properties: list[Identity]


def collected(items: Iterable[pytest.Item], run: dict[str, Any]) -> Collected:
    """Return the collected tests, in the process that collects."""
    items = list(items)
    properties = [{str(name): str(value) for name, value in item.user_properties} for item in items]
    return Collected(run, [item.nodeid for item in items], properties)


def attach(result: Mapping[str, Any], reports: list[pytest.TestReport]) -> None:
    """Attach the harness's result to the last report of a test. An attribute of text travels with any report."""
    setattr(reports[-1], ATTRIBUTE, encoded(result).decode())


class Gathering:
    """The pytest plugin that makes a line of each multi-rank test as it ends, and passes it on."""

    def __init__(self, heard: Callable[[CaseLine], None]) -> None:
        self.ids: list[str] = []
        self.run: dict[str, Any] = {}
        self.worlds_up: Counter[str] = Counter()
        self.troubles: list[str] = []
        self.single = SingleProcessTests()
        self._heard = heard
        self._properties: dict[str, Identity] = {}
        self._left: Counter[str] = Counter()
        self._reports: dict[tuple[str, str], list[Any]] = {}

    def expect(self, tests: Collected, times: int = 1) -> None:
        """Expect these tests to run, each of them ``times`` times."""
        self.run = tests.run
        self.ids = [id for id in tests.ids for _ in range(times)]
        self._properties = dict(zip(tests.ids, tests.properties, strict=True))
        self._left = Counter(self.ids)

    @property
    def subjects(self) -> dict[str, str]:
        """The file of each subject's ledger; an empty text if it has none."""
        cases = [identity for identity in self._properties.values() if {"case", "subject"} <= identity.keys()]
        return {identity["subject"]: identity.get("ledger-file", "") for identity in cases}

    @property
    def packages(self) -> dict[str, str]:
        """The package and its version, of each subject that names the package that it is from."""
        tests = self._properties.values()
        return {identity["subject"]: identity["package"] for identity in tests if identity.get("package")}

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.nodeid not in self._properties:
            self.single.hear(report)
            return
        key = (report.nodeid, getattr(report, "worker_id", ""))
        if report.when not in ("setup", "call", "teardown"):  # xdist's: the worker itself is gone
            for worker in {key[1], *_worker(report)}:
                self._reports.pop((report.nodeid, worker), None)
                self.worlds_up.pop(worker, None)
            self._end(crash_line(report, self._properties[report.nodeid]))
            return
        self._reports.setdefault(key, []).append(report)
        if report.when == "teardown":
            reports = self._reports.pop(key)
            if any(attempt.outcome == "rerun" for attempt in reports):
                return  # another attempt follows
            result = self._result(report)
            if result is not None:
                self.worlds_up[key[1]] = result.worlds_up
            self._end(line(reports, result, self._properties[report.nodeid]))

    def _result(self, report: Any) -> TestResult | None:
        text = getattr(report, ATTRIBUTE, None)
        return None if text is None else msgspec.json.decode(text, type=TestResult)

    def _end(self, case: CaseLine) -> None:
        if not self._left[case.id]:
            # For example, its worker crashed after its last report. A second line would look like a second test.
            self.troubles.append(f"{case.id} was reported again: {case.outcome}: {case.message}")
            return
        self._left[case.id] -= 1
        self._heard(case)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.troubles.append(f"{report.nodeid or 'the run'} could not be collected")

    def close(self) -> None:
        """Make not-run lines of the tests that were not reported."""
        for id in (id for id, times in self._left.items() for _ in range(times)):
            self._heard(not_run_line(id, self._properties[id]))
        self._left.clear()


def _worker(report: Any) -> list[str]:
    """Return the worker that a report of pytest-xdist's own names."""
    gateway = getattr(getattr(report, "node", None), "gateway", None)
    return [gateway.id] if gateway is not None else []


def leave(tests: Collected, path: Path) -> None:
    """In a worker, write the collected tests to the file that the controller reads."""
    path.write_bytes(encoded(tests))


def fetch(path: Path, ids: list[str]) -> Collected:
    """In the controller, read a worker's tests. For a worker on another host only the ids are known."""
    try:
        tests = msgspec.json.decode(path.read_bytes(), type=Collected)
        path.unlink()
    except OSError:
        return Collected({}, ids, [{} for _ in ids])
    return tests
