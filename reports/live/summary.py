"""Print the summary at the end of a run: a small matrix, and the worst, the slowest and the least exact cases."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import pytest
from everyrank.model.counts import count
from everyrank.model.outcome import ENDINGS, RED, Ending
from everyrank.reports.live.tally import MOST, Tally
from everyrank.reports.runfile.conclusion import Conclusion
from everyrank.reports.text import ulps_text


class FinishedRun(Protocol):
    """The end of a run, as the summary reads it."""

    @property
    def trouble(self) -> str: ...

    @property
    def conclusion(self) -> Conclusion | None: ...


class Summary:
    """The pytest plugin that prints the summary, in the process that prints.

    Tests without a subject get no summary unless a run file was asked for: pytest's own output is enough.
    """

    def __init__(self, config: pytest.Config, tally: Tally, path: Path | None, run: FinishedRun) -> None:
        self._config = config
        self._tally = tally
        self._path = path
        self._run = run

    @pytest.hookimpl(tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        quiet = self._config.get_verbosity() < 0 or self._config.getoption("no_summary", False)
        asked = self._tally.subjects or self._path is not None
        if self._tally.total and asked and not quiet:
            terminalreporter.write_sep("=", title(self._tally, self._run.conclusion))
            details = self._config.get_verbosity() > 0
            for line in [*text(self._tally, details), *(known(self._tally) if details else ())]:
                terminalreporter.write_line(line)
        if self._tally.not_kept and self._config.get_verbosity() > 0:
            terminalreporter.write_sep("=", "everyrank: worlds that were not kept for the next test")
            for line in not_kept(self._tally):
                terminalreporter.write_line(line)
        if self._path is None:
            return
        if trouble := self._run.trouble:
            terminalreporter.write_line(f"run file: {trouble}", red=True)
        else:
            shown = _shown(self._path)
            terminalreporter.write_line(f"run file: {shown}")
            if not quiet:
                terminalreporter.write_line(f"to view it: everyrank page {shown} -o report.html")


def _shown(path: Path) -> str:
    """Return the path relative to the current folder if it lies below it."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


def title(tally: Tally, conclusion: Conclusion | None = None) -> str:
    """Return the section's title. With subjects, the kit's last line has the total, so the title has none."""
    red = "all green" if not tally.red else f"{tally.red:,} not green"
    if conclusion is not None and not tally.red and not conclusion.as_declared:
        beside = ", ".join(reason.lead for reason in conclusion.reasons)
        red = beside if conclusion.state == "nothing-ran" else f"none red, but {beside}"
    if tally.subjects:
        return f"everyrank: {red}"
    return f"everyrank: {count(tally.total, 'multi-rank test')}, {red}"


def text(tally: Tally, details: bool = False) -> list[str]:
    """Return the lines of the section. Slow cases and large errors are shown with ``details`` or after a red run."""
    lines = _matrix(tally)
    if tally.documented:
        lines.append(f"documented by the library itself: {tally.documented:,} of {tally.outcomes['known']:,} known")
    if not (details or tally.red):
        return lines
    lines += _part("laws that are not green", [_law(*law) for law in tally.red_laws])
    lines += _part("worst", [f"{outcome:<8} {text}" for outcome, text in tally.worst], tally.red)
    lines += _part("slowest", [f"{seconds:7.2f} s  {id}" for seconds, id in tally.slowest])
    errors = [
        f"{', '.join(filter(None, (f'{relative:8.1e}', ulps_text(ulps))))}  {location}"
        for relative, ulps, location in tally.errors
    ]
    return lines + _part("largest errors that are in no ledger", errors)


def known(tally: Tally) -> list[str]:
    """Return the deviations in the ledgers, as this run showed them: with ``-v`` only."""
    lines = [
        f"  {subject}  {note or 'no note'}: {count:,}, such as\n    {seen}"
        for (subject, note), (count, seen) in tally.known.items()
    ]
    return ["known deviations, seen again:", *lines] if lines else []


def not_kept(tally: Tally) -> list[str]:
    """Return why worlds served no further test after a test that passed: with ``-v`` only."""
    more = {reason: f" and {count - 1} more" if count > 1 else "" for reason, (count, _) in tally.not_kept.items()}
    return [f"{first}{more[reason]}: {reason}" for reason, (_, first) in tally.not_kept.items()]


def _matrix(tally: Tally) -> list[str]:
    """Return a table of subjects (or files) by the outcomes that occurred."""
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
