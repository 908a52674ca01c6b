"""Check the path of the page, and describe the page in one line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from everyrank.model.counts import count
from everyrank.model.outcome import RED
from everyrank.reports.errors import CannotWrite
from everyrank.reports.page.build import GENERATOR
from everyrank.reports.runfile.read import Run
from everyrank.reports.text import plain

#: The first bytes of a page, which name the generator.
_HEAD = 2000
#: The limit of a reason, in characters.
_REASON = 400


def check(path: Path) -> None:
    """Raise `CannotWrite` if a file other than an older page exists at the path. An older page is replaced."""
    if path.exists() and not path.is_file():
        return  # for example a pipe or a folder: writing it shows whether it can be written
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except OSError:
        return  # missing or not readable: writing it shows whether it can be written
    if head and f'name="generator" content="{GENERATOR}'.encode() not in head:
        raise CannotWrite(
            f"{path}: this file exists, and is not a page of everyrank: choose another name, or remove it"
        )


def summary(runs: Sequence[Run]) -> str:
    """Return one line that describes the page."""
    cases = sum(len(run.cases) for run in runs)
    red = sum(number for run in runs for ending, number in run.counts.items() if ending in RED)
    files = f" of {len(runs)} run files" if len(runs) > 1 else ""
    verdict = [f"{red:,} {'needs' if red == 1 else 'need'} a person"] if red else []
    if all(run.conclusion.as_declared for run in runs):
        verdict = ["all as declared"]
    cut = [f"{run.path.name} did not finish: {run.came}" for run in runs if not run.complete]
    others = [
        f"{run.path.name}: {plain(reason.text, _REASON)}" for run in runs for reason in run.conclusion.not_in_counts
    ]
    return "; ".join([", ".join([f"{count(cases, 'case')}{files}", *verdict]), *cut, *others])
