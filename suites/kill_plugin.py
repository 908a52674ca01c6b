"""The pytest plugin of ``everyrank kill-matrix``: prints the matrices, and makes the exit code theirs."""

from __future__ import annotations

from typing import Any

import pytest
from everyrank.suites.kill import Matrix, asked
from everyrank.suites.outcomes import Outcomes


def _matrices(config: pytest.Config) -> list[Matrix]:
    (outcomes,) = [one for one in config.pluginmanager.get_plugins() if isinstance(one, Outcomes)]
    return [Matrix(name, outcomes.cells) for name in asked()] if outcomes.cells else []


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        perfect = all(not matrix.faults() for matrix in _matrices(session.config))
        session.exitstatus = pytest.ExitCode.OK if perfect else pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    for matrix in _matrices(config):
        terminalreporter.write_line(f"\n{matrix.text()}")
    for report in terminalreporter.stats.get("error", []):
        if isinstance(report, pytest.CollectReport):  # told by nobody else: failures are what this run is for
            terminalreporter.write_line(str(report.longrepr))
