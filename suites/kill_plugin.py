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
    return [Matrix(name, cells) for name in asked()]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        perfect = not any(matrix.faults for matrix in _matrices(session.config))
        session.exitstatus = pytest.ExitCode.OK if perfect else pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    matrices = _matrices(config) if _outcomes(config).cells else []
    for matrix in matrices:
        terminalreporter.write_line(f"\n{matrix.text()}")
    for report in [*terminalreporter.stats.get("error", []), *terminalreporter.stats.get("failed", [])]:
        if _needs_telling(report):
            terminalreporter.write_line(f"\n{report.nodeid}\n{report.longreprtext}")
    # Last, where they are found in the tail of a log.
    for matrix in matrices:
        for fault in matrix.faults:
            terminalreporter.write_line(f"FAULT: {matrix.contract}: {fault}")


def _needs_telling(report: pytest.CollectReport | pytest.TestReport) -> bool:
    """Failures are what this run is for; an end that is no kill, or that belongs to no case, is not."""
    said = dict(getattr(report, "user_properties", ()))
    return said.get("outcome", "error") in NO_KILL
