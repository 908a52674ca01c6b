"""The pytest plugin of ``everyrank kill-matrix``: prints the matrices, and makes the exit code theirs."""

from __future__ import annotations

from typing import Any

import pytest
from everyrank.suites.kill import Matrix, asked
from everyrank.suites.outcomes import Outcomes


def _outcomes(config: pytest.Config) -> Outcomes:
    (found,) = [one for one in config.pluginmanager.get_plugins() if isinstance(one, Outcomes)]
    return found


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        cells = _outcomes(session.config).cells
        perfect = not any(Matrix(name, cells).faults() for name in asked())
        session.exitstatus = pytest.ExitCode.OK if perfect else pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    cells = _outcomes(config).cells
    for name in asked() if cells else []:
        terminalreporter.write_line(f"\n{Matrix(name, cells).text()}")
    for report in terminalreporter.stats.get("error", []):
        if isinstance(report, pytest.CollectReport):  # told by nobody else: failures are what this run is for
            terminalreporter.write_line(str(report.longrepr))
