"""The outcome of each case of each subject: collected from reports, and printed at the end of the run."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest
from everyrank.model.counts import count
from everyrank.model.outcome import NOT_TRIED, RED
from everyrank.suites.collect.stash import LEFT_OUT
from everyrank.suites.errors import LIKE, STATED, undeclared


class Outcomes:
    """A pytest plugin of the process that prints: with pytest-xdist, of its controller."""

    def __init__(self) -> None:
        self.cells: dict[tuple[str, str], str] = {}
        self._documented: set[tuple[str, str]] = set()
        self._not_tried: dict[tuple[str, str], str] = {}  # the reason, such as too few GPUs
        self._missing: dict[str, set[str]] = {}  # what each subject lacks and does not declare
        self._needing: set[tuple[str, str]] = set()  # cases that need it
        self._stated: dict[tuple[str, str], list[str]] = {}  # cases that a ledger could declare, and those that do
        self._like: dict[tuple[str, str], str] = {}  # red cases that may have the cause of another test: which one
        self._with_ledger: set[str] = set()  # the subjects that have a ledger of their own
        self._since = time.monotonic()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.user_properties:
            properties = {str(name): str(value) for name, value in report.user_properties}
            if "outcome" in properties:
                from everyrank.suites.engine.ledger import DOCUMENTED  # a run without cases need not import it

                cell = properties.get("subject", ""), properties.get("case", report.nodeid)
                self.cells[cell] = properties["outcome"]
                if properties.get("ledger-kind") == DOCUMENTED:
                    self._documented.add(cell)
                if "missing" in properties:
                    self._missing.setdefault(cell[0], set()).update(properties["missing"].split())
                    self._needing.add(cell)
                self._like.pop(cell, None)
                if LIKE in properties:
                    self._like[cell] = properties[LIKE]
                if STATED in properties:
                    self._stated[cell] = properties[STATED].split()
                if "ledger-file" in properties:
                    self._with_ledger.add(cell[0])
            elif report.skipped and "case" in properties and isinstance(report.longrepr, tuple):
                self._not_tried[properties["subject"], properties["case"]] = report.longrepr[2].removeprefix(
                    "Skipped: "
                )

    def pytest_terminal_summary(self, terminalreporter: Any, config: pytest.Config) -> None:
        left_out = config.stash.get(LEFT_OUT, None)
        for line in left_out.lines() if left_out is not None else ():
            terminalreporter.write_line(f"filtered: {line}")
        if self.cells:
            terminalreporter.write_line(self._total())
        for subject, names in self._missing.items():
            left = sum(self.cells[cell] == "not-run" for cell in self._needing if cell[0] == subject)
            tried = f"{count(left, 'case')} not tried: " if left else ""
            terminalreporter.write_line(f"conformance: {tried}{undeclared(subject, names)}")
        for first, number in Counter(self._like.values()).most_common():
            terminalreporter.write_line(
                f"conformance: {first}, and {number} like it: one cause may make all of them red"
            )
        for subject in sorted({subject for subject, _ in self._stated}):
            if hint := self._to_declare(subject, config.getoption("run_file", None) or ""):
                terminalreporter.write_line(f"conformance: {hint}")
        for reason, number in Counter(self._not_tried.values()).most_common():
            terminalreporter.write_line(f"conformance: not tried: {count(number, 'case')}: {reason}")

    def _to_declare(self, subject: str, run: str) -> str:
        """Return how red cases of a subject could be declared: by a ledger to build on, or by one of its own."""
        cases = {cell[1]: names for cell, names in sorted(self._stated.items()) if cell[0] == subject}
        states = Counter(name for names in cases.values() for name in names).most_common(1)
        red = sum(end in RED - NOT_TRIED for cell, end in self.cells.items() if cell[0] == subject)
        # Of fewer than half it would be an invitation to excuse faults of its own.
        if states and 2 * states[0][1] >= red:
            name, number = states[0]
            seen = f"{number} of {count(red, 'red case')} of {subject} deviate as {name} states"
            return f'{seen}: if it builds on that, paste known="{name}" into its Subject, and run again'
        failed = [case for case in cases if self.cells[subject, case] == "fail"]
        if not failed or subject in self._with_ledger:
            return ""
        accept = f"{'' if run else 'pytest --run-file run.jsonl, '}everyrank accept {run or 'run.jsonl'}"
        mend = f"{count(len(failed), 'red case')} of {subject}: correct it, or list what is known in a ledger"
        return f'{mend}: {accept} --ledger mine.toml, and known="mine.toml" in its Subject'

    def _total(self) -> str:
        seconds = time.monotonic() - self._since
        kinds = ", ".join(map(self._counted, Counter(self.cells.values()).most_common()))
        subjects = len({subject for subject, _ in self.cells})
        many = count(len(self.cells), "case")
        many += f" of {subjects} subjects" if subjects > 1 else ""
        rate = len(self.cells) / seconds
        return f"conformance: {many} in {seconds:.0f} s ({rate:.1f} a second): {kinds}"

    def _counted(self, ends: tuple[str, int]) -> str:
        """Describe a count; limits that the library documents are known, and are also counted on their own."""
        kind, number = ends
        documented = sum(self.cells[cell] == kind for cell in self._documented) if kind == "known" else 0
        return f"{number} {kind} ({documented} documented)" if documented else f"{number} {kind}"
