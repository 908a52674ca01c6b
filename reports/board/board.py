"""Put the subjects of run files side by side: a table a contract, a row a subject, a column a group of laws."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from everyrank.model.outcome import ENDINGS, HOLDS, RED, Ending
from everyrank.reports.badge import NOT_ASKED
from everyrank.reports.errors import ReportError
from everyrank.reports.runfile.model import CaseLine
from everyrank.reports.runfile.read import Run

#: Outcomes that a board opens: what a person looks into.
OPENED: frozenset[Ending] = RED | {"known"}


@dataclass
class Cell:
    """The outcomes of the cases of one group of laws, on one subject."""

    counts: Counter[Ending] = field(default_factory=Counter)
    opened: list[CaseLine] = field(default_factory=list)
    before: Counter[Ending] | None = None
    """The counts of the earlier board, if there is one that has this cell."""

    @property
    def asked(self) -> int:
        return sum(number for ending, number in self.counts.items() if ending not in NOT_ASKED)

    @property
    def holds(self) -> int:
        return sum(self.counts[ending] for ending in HOLDS)

    @property
    def worst(self) -> Ending:
        """The outcome that a person looks at first; what is not claimed or not asked only if nothing else was."""
        endings = [ending for ending in ENDINGS if self.counts[ending]]
        return next((ending for ending in endings if ending in OPENED | HOLDS), endings[0])

    @property
    def red(self) -> int:
        return sum(self.counts[ending] for ending in RED)

    @property
    def change(self) -> int:
        """How many more cases are red than in the earlier board."""
        return 0 if self.before is None else self.red - sum(self.before[ending] for ending in RED)


@dataclass
class Row:
    """One subject."""

    subject: str
    contract: str
    package: str
    """The package that it is from, with its version; empty if the subject names none."""
    run: Run
    cells: dict[str, Cell] = field(default_factory=dict)

    @property
    def total(self) -> Cell:
        total = Cell()
        for cell in self.cells.values():
            total.counts += cell.counts
            total.opened += cell.opened
            if cell.before is not None:
                total.before = (total.before or Counter()) + cell.before
        return total


@dataclass(frozen=True)
class Table:
    """The subjects of one contract."""

    contract: str
    groups: tuple[str, ...]
    rows: tuple[Row, ...]


def board(runs: Sequence[Run], before: Sequence[Run] = ()) -> list[Table]:
    """Return a table for each contract that has subjects in these runs, in the order of their names.

    Raise `ReportError` if no run has a subject, or if two have the same one.
    """
    rows = _rows(runs)
    if not rows:
        files = ", ".join(str(run.path) for run in runs)
        raise ReportError(f"{files}: no case of a subject: give run files of conformance tests")
    for key, row in _rows(before).items():
        for group, cell in row.cells.items():
            if key in rows and group in rows[key].cells:
                rows[key].cells[group].before = cell.counts
    tables = []
    for contract in sorted({contract for contract, _ in rows}):
        mine = tuple(row for (name, _), row in sorted(rows.items()) if name == contract)
        groups = {group: None for row in mine for group in row.cells}
        tables.append(Table(contract, tuple(groups), mine))
    return tables


def group_of(law: str) -> str:
    """Return the group of a law: ``state`` of ``state.round-trip``; a law without a dot is its own."""
    return law.partition(".")[0]


def _rows(runs: Iterable[Run]) -> dict[tuple[str, str], Row]:
    rows: dict[tuple[str, str], Row] = {}
    for run in runs:
        for case in run.cases:
            if not case.subject:
                continue
            key = (case.contract, case.subject)
            package = run.header.packages.get(case.subject, "")
            row = rows.setdefault(key, Row(case.subject, case.contract, package, run))
            if row.run is not run:
                raise ReportError(f"{run.path}: the subject {case.subject!r} is also in {row.run.path}")
            cell = row.cells.setdefault(group_of(case.law), Cell())
            cell.counts[case.outcome] += 1
            if case.outcome in OPENED:
                cell.opened.append(case)
    return rows
