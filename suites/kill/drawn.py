"""A table for ``everyrank kill-matrix --generate``: which rogues draws alone find, and after how many draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from everyrank.model.counts import count
from everyrank.suites.kill import matrix
from everyrank.suites.options import SearchPlan

#: The share of a contract's rogues that must be found.
SHARE = 0.9


@dataclass
class RowOfDraws:
    """The outcome of one rogue, or of a control."""

    contract: str
    outcome: str
    draws: str


@dataclass(eq=False)
class TableOfDraws:
    """A pytest plugin of the process that prints: collects generated cases, prints a table, sets the exit code."""

    contracts: Sequence[str]
    plan: SearchPlan
    rows: dict[tuple[str, str], RowOfDraws] = field(default_factory=dict)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        properties = {str(name): str(value) for name, value in report.user_properties}
        if "outcome" in properties:
            row = RowOfDraws(properties["contract"], properties["outcome"], properties.get("generate-draws", "?"))
            self.rows[properties["contract"], properties["subject"]] = row

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED if self.faults() else pytest.ExitCode.OK

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for line in self.lines():
            terminalreporter.write_line(line)
        for fault in self.faults():
            terminalreporter.write_line(f"FAULT: {fault}")

    def lines(self) -> list[str]:
        """Return one line for each rogue, with the number of draws after which it was found."""
        lines = []
        for contract in self.contracts:
            found, rogues = self._counted(contract)
            draws = count(self.plan.draws, "draw")
            lines.append(f"\n{contract}: {found} of {count(rogues, 'rogue')} found within {draws} each")
            names = [matrix.EXEMPLAR, matrix.NOTHING, *(rogue.name for rogue in matrix.rogues(contract))]
            width = max(map(len, names))
            lines += [f"{name:{width}}  {_describe_row(self._row(contract, name))}" for name in names]
        return lines

    def faults(self) -> list[str]:
        """Return what is wrong with the table, one sentence each."""
        known = []
        for contract in self.contracts:
            found, rogues = self._counted(contract)
            if not rogues:
                known.append(f"{contract} has no player, or no rogue was tried")
            elif found < SHARE * rogues:
                known.append(f"{contract}: {found} of {count(rogues, 'rogue')} found, which is less than {SHARE:.0%}")
            for name, expected in ((matrix.EXEMPLAR, "pass"), (matrix.NOTHING, "fail")):
                outcome = self._row(contract, name).outcome
                if outcome != expected:
                    known.append(f"{contract}: {name} ends by {outcome} instead of {expected}")
        return known

    def _counted(self, contract: str) -> tuple[int, int]:
        """Return how many rogues were found, and how many there are. A crash or a hang does not count as found."""
        names = [rogue.name for rogue in matrix.rogues(contract)]
        return sum(self._row(contract, name).outcome == "fail" for name in names), len(names)

    def _row(self, contract: str, name: str) -> RowOfDraws:
        return self.rows.get((contract, name), RowOfDraws(contract, "a hang or a crash, which does not count", "?"))


def _describe_row(row: RowOfDraws) -> str:
    if row.outcome == "fail":
        return f"found by draw {row.draws}"
    return f"not found in {row.draws} draws" if row.outcome == "pass" else row.outcome
