"""A run's lines, gathered in the process that prints: of the reports that arrive, and of what the harness told.

With pytest-xdist that process is its controller, which collects nothing: each worker leaves a list of what it
collected, and what the harness told of a test travels on its last report.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from everyrank.reports.line import Told, crash_line, line, not_run_line
from everyrank.reports.model import CaseLine
from everyrank.reports.single_process import SingleProcessTests
from everyrank.reports.writing import encoded

#: The attribute of a test's last report that holds what the harness told, as JSON.
ATTRIBUTE = "everyrank_told"

#: What is known of a test before it runs: the user properties that it was collected with.
Identity = dict[str, str]


class Collected(msgspec.Struct):
    """What one pytest process collected: the multi-rank tests, and what is known of each before it runs."""

    run: dict[str, Any]
    ids: list[str]
    said: list[Identity]


def collected(items: Iterable[pytest.Item], run: dict[str, Any]) -> Collected:
    """For the process that collects."""
    items = list(items)
    said = [{str(name): str(value) for name, value in item.user_properties} for item in items]
    return Collected(run, [item.nodeid for item in items], said)


def attach(told: Mapping[str, Any], reports: list[pytest.TestReport]) -> None:
    """Let the last report of a test carry what the harness told; an attribute of text travels with any report."""
    setattr(reports[-1], ATTRIBUTE, encoded(told).decode())


class Gathering:
    """Makes a line of each multi-rank test as it ends, and hands it on. A pytest plugin."""

    def __init__(self, heard: Callable[[CaseLine], None]) -> None:
        self.ids: list[str] = []
        self.run: dict[str, Any] = {}
        self.worlds_up: Counter[str] = Counter()
        self.troubles: list[str] = []
        self.single = SingleProcessTests()
        self._heard = heard
        self._said: dict[str, Identity] = {}
        self._left: Counter[str] = Counter()
        self._reports: dict[tuple[str, str], list[Any]] = {}

    def expect(self, found: Collected, times: int = 1) -> None:
        """These tests will run, so many times each."""
        self.run = found.run
        self.ids = [one for one in found.ids for _ in range(times)]
        self._said = dict(zip(found.ids, found.said, strict=True))
        self._left = Counter(self.ids)

    @property
    def subjects(self) -> dict[str, str]:
        """The file of each subject's ledger, empty for none."""
        named = [one for one in self._said.values() if "case" in one and "subject" in one]
        return {one["subject"]: one.get("ledger-file", "") for one in named}

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.nodeid not in self._said:
            self.single.hear(report)
            return
        key = (report.nodeid, getattr(report, "worker_id", ""))
        if report.when not in ("setup", "call", "teardown"):  # xdist's: the worker itself is gone
            for worker in {key[1], *_worker(report)}:
                self._reports.pop((report.nodeid, worker), None)
                self.worlds_up.pop(worker, None)
            self._end(crash_line(report, self._said[report.nodeid]))
            return
        self._reports.setdefault(key, []).append(report)
        if report.when == "teardown":
            reports = self._reports.pop(key)
            if any(one.outcome == "rerun" for one in reports):
                return  # another attempt follows
            told = self._told(report)
            if told is not None:
                self.worlds_up[key[1]] = told.worlds_up
            self._end(line(reports, told, self._said[report.nodeid]))

    def _told(self, report: Any) -> Told | None:
        text = getattr(report, ATTRIBUTE, None)
        return None if text is None else msgspec.json.decode(text, type=Told)

    def _end(self, case: CaseLine) -> None:
        if not self._left[case.id]:
            # Its worker crashed after all was said, say: a second line would say that two tests have one name.
            self.troubles.append(f"{case.id} was told once more: {case.outcome}: {case.message}")
            return
        self._left[case.id] -= 1
        self._heard(case)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.troubles.append(f"{report.nodeid or 'the run'} could not be collected")

    def close(self) -> None:
        """Whatever was never told was not run."""
        for one in (one for one, times in self._left.items() for _ in range(times)):
            self._heard(not_run_line(one, self._said[one]))
        self._left.clear()


def _worker(report: Any) -> list[str]:
    """The worker that pytest-xdist's own reports are about."""
    gateway = getattr(getattr(report, "node", None), "gateway", None)
    return [gateway.id] if gateway is not None else []


def leave(found: Collected, path: Path) -> None:
    """In a worker: leave what was collected where the controller looks for it."""
    path.write_bytes(encoded(found))


def fetch(path: Path, ids: list[str]) -> Collected:
    """In the controller. From a worker on another machine only all ids are known: then every test has a line."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Collected)
        path.unlink()
    except OSError:
        return Collected({}, ids, [{} for _ in ids])
    return found
