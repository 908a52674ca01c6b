"""Pages of made-up runs."""

from __future__ import annotations

from pathlib import Path

from everyrank.reports.page.build import page
from everyrank.reports.runfile.read import read

from tests.made_up_runs import MadeUp


def write(run: MadeUp, folder: Path, partial: bool = False) -> Path:
    """The page of a run."""
    file = folder / "report.html"
    file.write_text(page([read(run.write(folder / "run.jsonl"), partial)]), encoding="utf-8")
    return file
