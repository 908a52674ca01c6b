"""The pytest plugin of ``everyrank kill-matrix``: prints the matrices and sets the exit code by their faults."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from everyrank.suites.collect.outcomes import Outcomes
from everyrank.suites.collect.profile import DEFAULT
from everyrank.suites.collect.usability import outcome_of
from everyrank.suites.engine.contract import contract
from everyrank.suites.kill import first_kill, sample, tables
from everyrank.suites.kill.blind_spots import BlindSpots, requested_ledger
from everyrank.suites.kill.drawn import TableOfDraws
from everyrank.suites.kill.matrix import EXEMPLAR, NOTHING, Matrix, requested, rogues, sampled
from everyrank.suites.kill.tables import Table
from everyrank.suites.options import PLAN

_TABLES: pytest.StashKey[list[Table]] = pytest.StashKey()


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    filters = {"law": config.getoption("law"), "optimizer": config.getoption("optimizer")}
    if config.getoption("conformance_profile") != DEFAULT:
        filters["profile"] = config.getoption("conformance_profile")
    for option, value in filters.items():
        if value is not None:
            raise pytest.UsageError(
                f"the kill matrix takes no --{option}, since part of a matrix is never perfect; "
                "--contract selects a whole one"
            )
    if PLAN in config.stash:  # the first draw that fails is enough
        if requested_ledger():
            raise pytest.UsageError("--generate tries rogues without a ledger: leave out --ledger")
        config.stash[PLAN] = replace(config.stash[PLAN], shrink=False)
        config.pluginmanager.register(TableOfDraws(requested(), config.stash[PLAN]), "everyrank-worth")
    elif sample.requested().parts > 1 and not requested_ledger():
        config.pluginmanager.register(first_kill.FirstKill(config), "everyrank-first-kill")
    config.stash[_TABLES] = [tables.table(name, sample.requested()) for name in tables.requested()]
    for table in config.stash[_TABLES]:
        config.pluginmanager.register(table, f"everyrank-table-{table.contract}")


def _outcomes(config: pytest.Config) -> Outcomes:
    (outcomes,) = [plugin for plugin in config.pluginmanager.get_plugins() if isinstance(plugin, Outcomes)]
    return outcomes


def _matrices(config: pytest.Config) -> Sequence[Table]:
    cells, ledger = _outcomes(config).cells, requested_ledger()
    if PLAN in config.stash:
        return []
    if ledger:
        return [BlindSpots(name, ledger, cells) for name in requested()]
    matrices = [Matrix(name, cells, sampled(name, sample.requested())) for name in requested()]
    return [*matrices, *config.stash[_TABLES]]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if PLAN in session.config.stash:
        return
    if session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        perfect = not any(matrix.faults for matrix in _matrices(session.config))
        perfect = perfect and not any(map(_is_unexpected, _red(session.config)))
        session.exitstatus = pytest.ExitCode.OK if perfect else pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    ran = _outcomes(config).cells or requested_ledger() or config.stash[_TABLES]
    matrices = _matrices(config) if ran else []
    for matrix in matrices:
        terminalreporter.write_line(f"\n{matrix.text()}")
    for report in filter(_is_unexpected, _red(config)):
        terminalreporter.write_line(f"\n{report.nodeid}\n{report.longreprtext}")
    _settle_killers(terminalreporter, config)
    # The faults come last, so they are in the tail of a log.
    for matrix in matrices:
        for fault in matrix.faults:
            terminalreporter.write_line(f"FAULT: {matrix.contract}: {fault}")


def _settle_killers(terminalreporter: Any, config: pytest.Config) -> None:
    """Write which case of crossings killed each rogue, if that is asked for; or print that the file is old."""
    if PLAN in config.stash or requested_ledger():
        return
    crossing = {f"{name}/{law.id}" for name in requested() for law in contract(name).laws.values() if law.crosses}
    kills: dict[tuple[str, str], set[str]] = {}
    for (row, case), end in _outcomes(config).cells.items():
        if end == "fail" and row not in (EXEMPLAR, NOTHING) and case.partition("[")[0] in crossing:
            kills.setdefault((case.partition("/")[0], row), set()).add(case)
    known = {name: {rogue.name for rogue in rogues(name)} for name in requested()}
    before = first_kill.read()
    killers = first_kill.updated(kills, known)
    if sample.WRITES_KILLERS in os.environ:
        first_kill.write(killers)
    elif any(killers.get(name) != before[name] for name in before):  # no contract of a package that has none there
        terminalreporter.write_line(f"\n{first_kill.KILLERS.name} is out of date: --write-killers writes it")


def _red(config: pytest.Config) -> list[pytest.CollectReport | pytest.TestReport]:
    """Return the reports that pytest counts as errors and failures."""
    stats = config.pluginmanager.getplugin("terminalreporter").stats
    return [*stats.get("error", []), *stats.get("failed", [])]


def _is_unexpected(report: pytest.CollectReport | pytest.TestReport) -> bool:
    """Return whether a failure is no kill, or belongs to no case. Kills are what this run looks for.

    A case may have failed by what its ranks did together, whatever outcome one of them has reported.
    """
    outcome = outcome_of(report) or "error"
    return outcome != "fail" and not (outcome == "stale" and requested_ledger())
