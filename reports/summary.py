"""The summary at the end of a run: the matrix in small, what is worst, slowest and least exact."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from everyrank.reports.model import ENDINGS, RED, Ending
from everyrank.reports.tally import MOST, Tally


class Summary:
    """A pytest plugin of the process that prints.

    Nothing is told of a few tests of no subject, unless a run file was asked for: pytest tells enough of them.
    """

    def __init__(self, config: pytest.Config, tally: Tally, path: Path | None, trouble: Callable[[], str]) -> None:
        self._config = config
        self._tally = tally
        self._path = path
        self._trouble = trouble

    @pytest.hookimpl(tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        quiet = self._config.get_verbosity() < 0 or self._config.getoption("no_summary", False)
        asked = self._tally.subjects or self._path is not None
        if self._tally.total and asked and not quiet:
            terminalreporter.write_sep("=", title(self._tally))
            for line in text(self._tally):
                terminalreporter.write_line(line)
        if self._path is None:
            return
        if trouble := self._trouble():
            terminalreporter.write_line(f"run file: {trouble}", red=True)
        else:
            shown = _shown(self._path)
            terminalreporter.write_line(f"run file: {shown}")
            if not quiet:
                terminalreporter.write_line(f"to look at it: everyrank page {shown} -o report.html")


def _shown(path: Path) -> str:
    """As a person would name it from here."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


def title(tally: Tally) -> str:
    """What the section is called."""
    subjects = len(tally.subjects)
    of = "" if not subjects else " of 1 subject" if subjects == 1 else f" of {subjects} subjects"
    red = "all green" if not tally.red else f"{tally.red:,} not green"
    what = "case" if subjects else "multi-rank test"
    return f"everyrank: {tally.total:,} {what}{'' if tally.total == 1 else 's'}{of}, {red}"


def text(tally: Tally) -> list[str]:
    """The whole section, line by line."""
    lines = _matrix(tally)
    lines += _part("laws that are not green", [_law(*one) for one in tally.red_laws])
    lines += _part("worst", [f"{outcome:9}{told}" for outcome, told in tally.worst], tally.red)
    lines += _part("slowest", [f"{seconds:7.2f} s  {id}" for seconds, id in tally.slowest])
    errors = [f"{relative:8.1e}, {ulps:g} ULPs  {where}" for relative, ulps, where in tally.errors]
    return lines + _part("largest errors that are in no ledger", errors)


def _matrix(tally: Tally) -> list[str]:
    """Subjects (or files) by outcomes; of these only such as occurred."""
    columns: list[Ending] = [ending for ending in ENDINGS if tally.outcomes[ending]]
    width = max(map(len, tally.rows))
    lines = [" " * width + "".join(f"  {ending}" for ending in columns)]
    for row, ends in tally.rows.items():
        cells = "".join(f"  {ends[ending] or '.':>{len(ending)}}" for ending in columns)
        lines.append(f"{row:{width}}{cells}")
    return lines


def _law(subject: str, law: str, ends: Mapping[Ending, int]) -> str:
    red = ", ".join(f"{ends[ending]} {ending}" for ending in ENDINGS if ending in RED and ends.get(ending))
    return f"{subject}  {law}: {red} of {sum(ends.values())}"


def _part(heading: str, lines: list[str], total: int = 0) -> list[str]:
    if not lines:
        return []
    more = max(total, len(lines)) - MOST
    rest = [f"  ... and {more:,} more"] if more > 0 else []
    return [f"{heading}:", *(f"  {line}" for line in lines[:MOST]), *rest]
