"""``everyrank page --against``: two runs side by side."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from everyrank.cli import main
from everyrank.model.outcome import Ending
from everyrank.reports.runfile.model import CaseLine

from tests.chromium import Browser
from tests.made_up_runs import case, header, run_of

#: optimizer: how it ended then, and now
STEPS: dict[str, tuple[Ending | None, Ending | None]] = {
    "SGD": ("pass", "fail"),
    "Adam": ("fail", "pass"),
    "Muon": ("pass", "pass"),
    "ASGD": (None, "pass"),
    "Lion": (None, "fail"),
    "Rprop": ("pass", None),
}


def _night(position: int, message: str) -> list[CaseLine]:
    ends = {label: step[position] for label, step in STEPS.items()}
    return [
        case(label=label, outcome=end, seconds=1.0 + position, message=message if end == "fail" else "")
        for label, end in ends.items()
        if end is not None
    ]


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    run_of(header(), _night(0, "raised KeyError")).write(tmp_path / "old.jsonl")
    run_of(header(), _night(1, "off by 0.1")).write(tmp_path / "new.jsonl")
    assert main(["page", "new.jsonl", "--against", "old.jsonl"]) == 0
    return tmp_path / "report.html"


def test_each_case_has_its_step_from_the_earlier_run(report: Path) -> None:
    found = re.search(r'<script[^>]*id="data"[^>]*>(.*?)</script>', report.read_text(), re.DOTALL)
    assert found is not None
    data = json.loads(found[1])
    steps = [data["tables"]["step"][number] for number in data["values"]["step"]]
    assert steps == [
        "regression: pass → fail",
        "fix: fail → pass",
        "as before",
        "new → pass",
        "regression: new → fail",
    ]
    assert data["against"]["file"] == "old.jsonl"
    assert data["against"]["verdict"] == "2 regressions, 1 fix, 1 new case, 1 case gone"


def test_several_files_are_not_compared(report: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = run_of(header(), [case(subject="mine.Other")]).write(report.with_name("other.jsonl"))
    before = report.read_bytes()
    assert main(["page", "new.jsonl", str(other), "--against", "old.jsonl"]) == 2
    assert capsys.readouterr().err == "everyrank page: --against old.jsonl: compares one run file, not 2\n"
    assert report.read_bytes() == before


def test_neither_of_the_runs_is_overwritten(report: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report.with_name("old.html").write_bytes(report.with_name("old.jsonl").read_bytes())
    before = report.with_name("old.html").read_bytes()
    assert main(["page", "new.jsonl", "--against", "old.html", "-o", "old.html"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert report.with_name("old.html").read_bytes() == before


def test_an_open_case_shows_both_runs_and_the_filter_what_changed(browser: Browser, report: Path) -> None:
    browser.open(report, view="cases")
    assert "old.jsonl: 2 regressions, 1 fix" in browser.text("#facts")
    browser.choose("step", "regression: pass → fail")
    browser.wait(lambda: len(browser.all(".row")) == 1)
    browser.open(report, case=case(label="SGD").id)
    browser.case_opened()
    cells = browser.texts(".sides th, .sides td")
    assert [text.strip() for text in cells] == [
        "", "old.jsonl", "new.jsonl",
        "outcome", "pass", "fail",
        "time", "1 s", "2 s",
        "message", "\N{EN DASH}", "off by 0.1",
    ]  # fmt: skip
    assert browser.complaints() == []
