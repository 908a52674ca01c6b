"""A badge for each row of a board."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from everyrank.reports import badge
from everyrank.reports.board.board import Table
from everyrank.reports.errors import CannotWrite
from everyrank.reports.runfile.files import keep


def write(tables: Sequence[Table], folder: Path, made_of: Iterable[Path]) -> int:
    """Write the badges, named by the subjects; return how many."""
    inputs = list(made_of)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotWrite(f"{folder}: cannot be made: {error.strerror or error}") from None
    rows = [row for table in tables for row in table.rows]
    for row in rows:
        keep(folder / f"{file_name(row.subject)}.svg", badge.as_svg(badge.badge(row.run, row.subject)), inputs)
    return len(rows)


def file_name(subject: str) -> str:
    """Return the subject's name with all but letters, digits, dots and dashes replaced."""
    return re.sub(r"[^\w.-]+", "-", subject).strip("-.") or "subject"
