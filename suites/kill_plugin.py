"""The pytest plugin of ``everyrank kill-matrix``: prints the matrices, and makes the exit code theirs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from everyrank.suites.blind import BlindSpots, asked_ledger
from everyrank.suites.generate.options import PLAN
from everyrank.suites.generate.worth import Worth
from everyrank.suites.kill import NO_KILL, Matrix, asked
from everyrank.suites.outcomes import Outcomes


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    for option in ("law", "optimizer"):
        if config.getoption(option) is not None:
            raise pytest.UsageError(
                f"the kill matrix takes no --{option}, since a part of a matrix is never perfect; "
                "--contract chooses a whole one"
            )
    if PLAN in config.stash:  # the first draw that fails is enough
        if asked_ledger():
            raise pytest.UsageError("--generate tries rogues under no ledger: leave out --ledger")
        config.stash[PLAN] = replace(config.stash[PLAN], shrink=False)
        config.pluginmanager.register(Worth(asked(), config.stash[PLAN]), "everyrank-worth")


def _outcomes(config: pytest.Config) -> Outcomes:
    (found,) = [one for one in config.pluginmanager.get_plugins() if isinstance(one, Outcomes)]
    return found


def _matrices(config: pytest.Config) -> Sequence[Matrix | BlindSpots]:
    cells, ledger = _outcomes(config).cells, asked_ledger()
    if PLAN in config.stash:
        return []
    return [BlindSpots(name, ledger, cells) if ledger else Matrix(name, cells) for name in asked()]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if PLAN in session.config.stash:
        return
    if session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        perfect = not any(matrix.faults for matrix in _matrices(session.config))
        session.exitstatus = pytest.ExitCode.OK if perfect else pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    matrices = _matrices(config) if _outcomes(config).cells or asked_ledger() else []
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
    outcome = said.get("outcome", "error")
    return outcome in NO_KILL and not (outcome == "stale" and asked_ledger())
