"""``everyrank accept`` on a made-up run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from everyrank.cli import main
from everyrank.reports.runfile.model import CaseLine

from tests.made_up_runs import header, run_of

Accept = Callable[..., tuple[int, str]]


@pytest.fixture
def accept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Accept:
    """Return what accepts a run of these cases, and returns the exit code and what is printed."""
    monkeypatch.chdir(tmp_path)

    def accepted(cases: list[CaseLine], *arguments: str, ledger: str = "mine.toml", **more: Any) -> tuple[int, str]:
        subjects = {line.subject: ledger for line in cases if line.subject}
        run_of(header(**{"subjects": subjects, **more}), cases).write(tmp_path / "run.jsonl")
        code = main(["accept", "run.jsonl", *arguments])
        printed = capsys.readouterr()
        assert printed.err.count("\n") == (code == 2)
        return code, printed.out + printed.err

    return accepted
