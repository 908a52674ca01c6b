"""The table of parity's rogues in ``everyrank kill-matrix``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from everyrank.model.counts import count
from everyrank.suites.kill.sample import Sample

from tests.parity.kill.rows import Row, rows, sampled

#: Under these names a test says what was found, and what is wrong with it.
FOUND, FAULT = "parity-found", "parity-fault"


class Table:
    """The outcomes of the rows of a run, collected from the reports of its tests."""

    contract = "parity"

    def __init__(self, sample: Sample) -> None:
        self._sample, self._tried = sample, sampled(sample)
        self._found: dict[str, str] = {}
        self._faults: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take what a test has found."""
        module, _, rest = report.nodeid.partition("::test_kill[")
        if not rest or not module.endswith("cases.py"):
            return
        row = rest.removesuffix("]")
        properties = {str(name): str(value) for name, value in report.user_properties}
        if FOUND in properties:
            self._found[row] = properties[FOUND]
        if not report.passed:
            self._faults.setdefault(
                row, properties.get(FAULT, f"ends by {properties.get('verdict', report.outcome)}")
            )

    @property
    def faults(self) -> list[str]:
        """What keeps the table from being perfect, one sentence each."""
        return [fault for row in self._tried if (fault := self._fault(row))]

    def _fault(self, row: Row) -> str:
        fault = self._faults.get(row.id, "" if row.id in self._found else "was not tried")
        return f"{row.name} at {count(row.size, 'rank')} {fault}" if fault else ""

    def text(self) -> str:
        """Render a row for each subject that was tried: where parity finds it first, or that it is silent."""
        every = rows()
        rogues = sum(row.rogue is not None for row in every)
        honest = len(every) - rogues
        lines = [f"{self.contract}: {honest} honest subjects and sizes, {count(rogues, 'rogue')}"]
        width = max(map(len, (row.name for row in self._tried)), default=0)
        lines += [f"{row.name:{width}} {row.size} {self._end(row)}" for row in self._tried]
        lines += [*self._sentence()]
        lines += [] if self.faults else ["perfect: honest subjects are silent, and each rogue is found where it says"]
        return "\n".join(lines)

    def _end(self, row: Row) -> str:
        mark = "! " if self._fault(row) else ". " if row.rogue is None else "x "
        return mark + self._found.get(row.id, "nothing is known")

    def _sentence(self) -> Iterator[str]:
        if self._sample.parts == 1:
            yield "each honest subject and each rogue was tried"
        else:
            yield (
                f"part {self._sample.number} of {self._sample.parts} of all rows was tried{self._sample.reason}; "
                "--others=all tries all"
            )
