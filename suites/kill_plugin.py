"""The pytest plugin of ``everyrank kill-matrix``: prints the matrices, and makes the exit code theirs."""

from __future__ import annotations

from typing import Any

import pytest
from everyrank.suites.kill import NO_KILL, Matrix, asked
from everyrank.suites.outcomes import Outcomes


def _outcomes(config: pytest.Config) -> Outcomes:
    (found,) = [one for one in config.pluginmanager.get_plugins() if isinstance(one, Outcomes)]
    return found


def _matrices(config: pytest.Config) -> list[Matrix]:
    cells = _outcomes(config).cells
    return [Matrix(name, cells) for name in asked()] if cells else []


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        perfect = not any(matrix.faults for matrix in _matrices(session.config))
        session.exitstatus = pytest.ExitCode.OK if perfect else pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    matrices = _matrices(config)
    for matrix in matrices:
        terminalreporter.write_line(f"\n{matrix.text()}")
    for report in terminalreporter.stats.get("error", []):
        if isinstance(report, pytest.CollectReport):  # told by nobody else: failures are what this run is for
            terminalreporter.write_line(str(report.longrepr))
    for report in terminalreporter.stats.get("failed", []):
        if dict(report.user_properties).get("outcome") in NO_KILL:
            terminalreporter.write_line(f"\n{report.nodeid}\n{report.longreprtext}")
    # Last, where they are found in the tail of a log.
    for matrix in matrices:
        for fault in matrix.faults:
            terminalreporter.write_line(f"FAULT: {matrix.contract}: {fault}")
