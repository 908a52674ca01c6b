"""The columns of the page: a row of `COLUMNS` for each value of a case that the page has without inflating it.

A row is all that a column needs: its value in the run file, its kind, its widths, and in which parts of the page it
is. Data, cells, headings, sorting, filters, sums of time and the drawer's line of facts follow from it. The kinds are
drawn by ``js/columns.js``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from everyrank.reports.page.outcomes import SHOWN, shown
from everyrank.reports.runfile.model import CaseLine

#: The longest text in a column. It is longer than any message of a run file.
MESSAGE = 320
#: Kinds whose values are numbers. All others are texts (or rows of texts), of which the page's data has each once.
NUMBERS = ("outcome", "number", "ranks", "error", "duration")


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column. Without ``wide`` it is not in the list; without ``fact`` it is not in the drawer."""

    name: str  # in the data, in the address, and in the class of its cells
    value: Callable[[CaseLine], Any]
    kind: str = "text"
    heading: str | None = None  # default: the name
    wide: str = ""  # the width of its cells in the list, as CSS has it for a column of a grid
    beside: str = ""  # the same beside an open case; empty: not there
    paper: str = "minmax(0, 1fr)"  # the same on paper; empty: on a line of its own below the others
    narrow: str = ""  # its grid area on a narrow screen, if no column before has it; empty: not there
    descending: bool = False  # the first click on the heading sorts the largest first
    fact: str = ""  # the drawer's fact: {} is the value
    filter: str = ""  # the name of the filter's first choice, which stands for all cases
    searched: bool = False  # the filter by words looks in it

    @property
    def is_number(self) -> bool:
        return self.kind in NUMBERS


COLUMNS = (
    Column(
        name="outcome", value=lambda case: SHOWN.index(shown(case)), kind="outcome", heading="",
        wide="34px", beside="34px", paper="18px", narrow="1 / 1",
    ),
    Column(
        name="case", value=lambda case: id_parts(case)[1], kind="case",
        wide="minmax(180px, 2.2fr)", beside="minmax(180px, 2fr)", paper="minmax(0, 2fr)", narrow="1 / 2 / auto / -1",
    ),
    Column(
        name="subject", value=lambda case: case.subject, kind="subject", fact="{}", filter="all subjects",
        searched=True, wide="minmax(110px, 1fr)", beside="minmax(100px, 1fr)", paper="minmax(0, 1.3fr)",
        narrow="2 / 2",
    ),
    Column(name="law", value=lambda case: _law(case), kind="law", filter="all laws"),
    Column(
        name="optimizer", value=lambda case: case.optimizer, fact="{}", filter="all optimizers", searched=True,
    ),
    Column(
        name="size", value=lambda case: case.size, kind="ranks", heading="ranks", fact="{}", filter="all sizes",
        wide="52px", paper="36px",
    ),
    Column(
        name="error", value=lambda case: figure(case.error.ulps if case.error else None), kind="error",
        descending=True, wide="96px", beside="90px", paper="76px", narrow="2 / 3",
    ),
    Column(
        name="time", value=lambda case: milliseconds(case.seconds), kind="duration", fact="{}", descending=True,
        wide="74px", beside="70px", paper="58px", narrow="2 / 4",
    ),
    Column(
        name="message", value=lambda case: one_line(case.message), descending=True, searched=True,
        wide="minmax(120px, 2.4fr)", paper="", narrow="2 / 2",
    ),
    Column(
        name="pattern", value=lambda case: _pattern(case), fact="pattern: {}", filter="all patterns", searched=True,
    ),
    Column(name="world", value=lambda case: case.world, fact="world {}"),
    Column(name="worker", value=lambda case: case.worker, fact="worker {}", filter="all workers"),
    # The page puts a node id together from its law, its case, and the texts before and after them.
    Column(name="head", value=lambda case: id_parts(case)[0]),
    Column(name="tail", value=lambda case: id_parts(case)[2]),
    Column(name="ledger", value=lambda case: case.ledger),
    Column(name="lack", value=lambda case: one_line(case.lack) or None),
    Column(name="leak", value=lambda case: one_line(_leaks(case)) or None),
    Column(name="alone", value=lambda case: int(case.passes_alone), kind="number"),
)  # fmt: skip


def column_data(cases: Sequence[CaseLine], more: Sequence[Column] = ()) -> dict[str, Any]:
    """Return the values of all columns, the tables of texts that they refer to, and the rows of the columns."""
    columns = (*COLUMNS, *more)
    values: dict[str, list[Any]] = {}
    tables: dict[str, list[Any]] = {}
    for column in columns:
        values[column.name] = column_values = [column.value(case) for case in cases]
        if not column.is_number:
            # Each text once, in the order of their first case. A case without a text has the index -1.
            texts = dict.fromkeys(value for value in column_values if value is not None)
            indices = {text: index for index, text in enumerate(texts)}
            values[column.name] = [indices.get(value, -1) for value in column_values]
            tables[column.name] = msgspec.to_builtins(list(texts))
    return {"columns": list(_rows(columns, values, tables)), "values": values, "tables": tables}


def _rows(
    columns: Sequence[Column], values: Mapping[str, Sequence[Any]], tables: Mapping[str, Sequence[Any]]
) -> Iterator[dict[str, Any]]:
    """Yield the rows as data. A column in which no case has a value is left out of the list."""
    areas = set()
    for column in columns:
        row = {name: getattr(column, name) for name in column.__dataclass_fields__ if name != "value"}
        row["number"] = column.is_number and column.kind != "outcome"
        row["heading"] = column.name if column.heading is None else column.heading
        if all(value in (None, "") for value in tables.get(column.name, values[column.name])):
            row["wide"] = ""
        if row["wide"]:
            row["narrow"] = "" if column.narrow in areas else column.narrow
            areas.add(column.narrow)
        yield row


def id_parts(case: CaseLine) -> tuple[str, str, str | None]:
    """Split a node id into the text before the case, the case's name within its law, and the text after it.

    Many cases share the parts, so together they are far shorter than the ids.
    """
    law = f"{case.contract}/{case.law}"
    if case.law and case.case in case.id and case.case.startswith(f"{law}[") and case.case.endswith("]"):
        before, _, after = case.id.partition(case.case)
        return before, case.case[len(law) + 1 : -1], after
    file, separator, test = case.id.partition("::")
    return f"{file}{separator}", test, None


def _law(case: CaseLine) -> tuple[str, str]:
    """Return the contract and the law; for a test without a law, its file."""
    return (case.contract, case.law) if case.law else ("", case.id.partition("::")[0])


def _pattern(case: CaseLine) -> str | None:
    """Return the pattern of the first fault that the test's last call of parity has found."""
    faults = case.parity[-1].faults if case.parity else []
    return faults[0].pattern or None if faults else None


def _leaks(case: CaseLine) -> str:
    return "; ".join(f"{leak.kind}: {leak.what}" for leak in case.leaks)


def one_line(text: str) -> str:
    """Return the start of a text for a column. The omitted length is not shown: the run file may have cut it too."""
    return text if len(text) <= MESSAGE else f"{text[:MESSAGE]} …"


def milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 1)


def figure(value: float | None) -> float | str | None:
    """Return the value with three figures; as text if it is not finite, which JSON cannot express."""
    if value is None:
        return None
    return float(f"{value:.3g}") if math.isfinite(value) else str(value)
