"""The tests of ``everyrank kill-matrix``: each rogue, and the controls, on the core cases of EVERYRANK_CONTRACTS.

Also the pytest plugin that prints the matrices and turns the run's exit code into theirs.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from everyrank.suites.case import Case
from everyrank.suites.items import parameter
from everyrank.suites.kill import Matrix, tried
from everyrank.suites.outcomes import Outcomes


def contracts() -> list[str]:
    return [name for name in os.environ.get("EVERYRANK_CONTRACTS", "").split(",") if name]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.function.__name__ != test_kill.__name__ or "case" not in metafunc.fixturenames:
        return
    found = [case for name in contracts() for case in tried(name)]
    given = [parameter(case, f"{case.subject.name}/{case.id}") for case in found]
    metafunc.parametrize("case", given, indirect=True)


def test_kill(case: Case) -> None:
    """Fails where the case does: the matrix says whether it should."""
    case.run()


def _matrices(config: pytest.Config) -> list[Matrix]:
    (outcomes,) = [one for one in config.pluginmanager.get_plugins() if isinstance(one, Outcomes)]
    return [Matrix(name, outcomes.cells) for name in contracts()] if outcomes.cells else []


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        perfect = all(not matrix.faults() for matrix in _matrices(session.config))
        session.exitstatus = pytest.ExitCode.OK if perfect else pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    for matrix in _matrices(config):
        terminalreporter.write_line(f"\n{matrix.text()}")
