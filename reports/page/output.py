"""Where the page goes, and what is said of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from everyrank.reports.errors import CannotWrite
from everyrank.reports.model import RED
from everyrank.reports.page.build import GENERATOR
from everyrank.reports.reading import Run
from everyrank.reports.words import count, plain

#: The generator is told in the first lines of a page.
_HEAD = 2000
#: Characters of a reason.
_REASON = 400


def check(path: Path) -> None:
    """An older page is replaced; anything else that is there already is somebody's, and stays."""
    if path.exists() and not path.is_file():
        return  # a pipe, say, or a folder: whether it can be written shows when it is
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except OSError:
        return  # not there, or not to be read: whether it can be written shows when it is
    if head and f'name="generator" content="{GENERATOR}'.encode() not in head:
        raise CannotWrite(f"{path}: is there already, and no page of everyrank's: choose another name, or remove it")


def summary(runs: Sequence[Run]) -> str:
    """One line on what the page holds."""
    cases = sum(len(run.cases) for run in runs)
    red = sum(number for run in runs for ending, number in run.counts.items() if ending in RED)
    files = f" of {len(runs)} run files" if len(runs) > 1 else ""
    found = [f"{red:,} need a person"] if red else []
    if all(run.conclusion.as_declared for run in runs):
        found = ["all as declared"]
    cut = [f"{run.path.name} did not finish: {run.came}" for run in runs if not run.complete]
    others = [
        f"{run.path.name}: {plain(reason.text, _REASON)}" for run in runs for reason in run.conclusion.not_in_counts
    ]
    return "; ".join([", ".join([f"{count(cases, 'case')}{files}", *found]), *cut, *others])
