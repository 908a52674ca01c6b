"""How each case of each subject ended: collected where reports arrive, and told at the end of the run."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest


class Outcomes:
    """A pytest plugin of the process that prints: with pytest-xdist, of its controller."""

    def __init__(self) -> None:
        self.cells: dict[tuple[str, str], str] = {}
        self._since = time.monotonic()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.user_properties:
            said = {str(name): str(value) for name, value in report.user_properties}
            if "outcome" in said:
                self.cells[said.get("subject", ""), said.get("case", report.nodeid)] = said["outcome"]

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if not self.cells:
            return
        seconds = time.monotonic() - self._since
        kinds = ", ".join(f"{count} {kind}" for kind, count in Counter(self.cells.values()).most_common())
        subjects = len({subject for subject, _ in self.cells})
        many = f"{len(self.cells)} cases of {subjects} subjects" if subjects > 1 else f"{len(self.cells)} cases"
        rate = len(self.cells) / seconds
        terminalreporter.write_line(f"conformance: {many} in {seconds:.0f} s ({rate:.1f} a second): {kinds}")
