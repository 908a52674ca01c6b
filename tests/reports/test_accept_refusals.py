"""What ``everyrank accept`` refuses: a ledger that it cannot change safely, and an unclear command."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from everyrank.cli import main
from everyrank.reports.runfile.model import Footer, SinglePart

from tests.made_up_runs import case, header, run_of


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder with the file of a run that deviates from its subject's ledger, mine.toml."""
    monkeypatch.chdir(tmp_path)
    _write_run(tmp_path, "mine.toml")
    return tmp_path


def _write_run(folder: Path, ledger: str) -> None:
    deviating = case("tied", "SGD", "fail")
    run_of(header(subjects={deviating.subject: ledger}), [deviating]).write(folder / "run.jsonl")


def _refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the one line with which the command refuses these arguments."""
    assert main(["accept", "run.jsonl", *arguments]) == 2
    refusal = capsys.readouterr().err
    assert refusal.count("\n") == 1
    return refusal


@pytest.mark.parametrize(
    ("ledger", "message"),
    [
        ("[[known", "not TOML"),
        ('known = [{case = "a[b]", kind = "fail", issue = "unreported"}]\n', "write its entries as plain [[known]]"),
        ('[[known]]\nkind = "fail"\n', "mine.toml:1: not an entry"),
        ('[[known]]\ncase = "a[b]"\nkind = "fail"\nodd = 1\n', "mine.toml:1: not an entry"),
        ('note = """\n[[known]]\n"""\n', "write its entries as plain [[known]]"),
    ],
)
def test_a_ledger_that_cannot_be_changed_safely_is_not(
    folder: Path, capsys: pytest.CaptureFixture[str], ledger: str, message: str
) -> None:
    (folder / "mine.toml").write_text(ledger)
    assert message in _refusal(capsys)
    assert (folder / "mine.toml").read_text() == ledger


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--subject", "mine.Optimiser"], "its subjects: mine.Optimizer"),
        (["--ledger", "new.toml"], "each subject of this run names a ledger"),
        ([], "missing.toml: this ledger does not exist"),
    ],
)
def test_what_is_not_clear_is_asked_back(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    _write_run(folder, "missing.toml")
    assert message in _refusal(capsys, *arguments)


def test_a_run_without_subjects_takes_no_ledger(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_of(header(), [case(subject="", contract="")]).write(folder / "run.jsonl")
    refusal = _refusal(capsys, "--ledger", "new.toml")
    assert "run.jsonl: --ledger is for a subject, and this run has no case of one" in refusal


def test_a_ledger_is_never_written_over_the_run_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (folder / "run.jsonl").read_bytes()
    assert "not TOML" in _refusal(capsys, "--ledger", "run.jsonl", "--subject", "mine.Optimizer")
    assert (folder / "run.jsonl").read_bytes() == before


def test_a_reason_beside_the_cases_is_named_and_not_accepted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    single = SinglePart(failed=1, failures=["test_a.py::test_b"])
    footer = Footer(counts={"pass": 1}, seconds=1.0, exit=1, single=single)
    replace(run_of(header(), [case()]), footer=footer).write(tmp_path / "run.jsonl")
    assert main(["accept", str(tmp_path / "run.jsonl")]) == 1
    out = capsys.readouterr().out
    assert out == "not accepted: 1 single-process test failed: test_a.py::test_b\nnothing to accept\n"
