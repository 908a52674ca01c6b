"""`everyrank parity --run-file` writes what the page shows: each tensor of each size, by step, beside its bound."""

from __future__ import annotations

from pathlib import Path

import pytest
from everyrank.model.parity import ParityRowPart
from everyrank.parity.script.figures import Figures
from everyrank.reports.page.build import page
from everyrank.reports.runfile.model import CaseLine
from everyrank.reports.runfile.read import Run, read

from tests.parity.script.test_bad_use import TRAINS
from tests.parity.script.test_faults import SCRIPTS, printed


def _written(folder: Path, *arguments: str) -> tuple[int, str, Run]:
    code, text = printed("--run-file", str(folder / "run.jsonl"), *arguments)
    return code, text, read(folder / "run.jsonl")


def _rows(line: CaseLine) -> dict[tuple[str, str], ParityRowPart]:
    return {(row.kind, row.tensor): row for row in line.parity[0].passes[0].rows}


@pytest.mark.group("clusters")
def test_a_size_that_parts_is_red_and_has_its_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(SCRIPTS)
    code, text, run = _written(tmp_path, "train.py", "not-averaged")
    (line,) = run.cases
    assert code == 1
    assert (line.id, line.outcome, line.size) == ("train.py::parity[ws2]", "fail", 2)
    assert line.message == text.partition("\n")[0].removeprefix("everyrank parity: train.py, 2 ranks and one rank: ")
    (fault,) = line.parity[0].faults
    assert (fault.kind, fault.tensor, fault.step, fault.pattern) == ("clip", "up.weight", 1, "not-reduced")
    assert sorted(fault.same) == ["down.bias", "down.weight", "up.bias"]
    rows = _rows(line)
    assert rows["initialization", "up.weight"].errors == [0.0]
    assert rows["clip", "up.weight"].states == ["first"]
    assert rows["clip", "down.bias"].states == ["same"]
    assert rows["update", "up.weight"].states == ["follows"]
    assert rows["loss", ""].states == []
    assert "train.py" in page([run])


@pytest.mark.group("clusters")
def test_sizes_that_agree_are_green_over_all_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(TRAINS)
    code, text, run = _written(tmp_path, "--ranks", "1,2,4", "train.py")
    assert code == 0, text
    assert [(line.id[-5:-1], line.outcome, line.message) for line in run.cases] == [
        (size, "pass", "") for size in ("[ws2", "[ws4")
    ]
    for line in run.cases:
        assert line.parity[0].steps == 3
        assert [len(row.errors) for row in _rows(line).values() if row.kind == "gradient"] == [3, 3]
        assert not any(row.states for row in _rows(line).values())
    assert run.footer is not None
    assert run.footer.exit == 0


@pytest.mark.group("clusters")
def test_what_cannot_be_compared_is_an_error_for_each_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import torch")
    code, _, run = _written(tmp_path, "--ranks", "1,2", "train.py")
    assert code == 2
    (line,) = run.cases
    assert (line.outcome, line.parity) == ("error", [])
    assert line.message.endswith("without an optimizer's step: it trains nothing")


@pytest.mark.smoke
def test_another_file_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINS)
    other = tmp_path / "notes.txt"
    other.write_text("mine")
    assert printed("--run-file", str(other), str(tmp_path / "train.py")) == (
        2,
        f"everyrank parity: --run-file: {other} is not a run file of everyrank, and stays unchanged: name another "
        "file\n",
    )
    assert other.read_text() == "mine"


@pytest.mark.smoke
def test_figures_are_relative_and_the_worst_of_a_row_and_a_step() -> None:
    figures = Figures()
    figures.note(0, "gradient", "a.weight", 0.5, 0.1, 5.0)
    for step in range(2):
        figures.note(step, "parameter", "a.weight", 3.0 * step, 0.5, 1.0)
    figures.note(1, "state", "step` of `a.weight", 0.0, 1.0, 1.0)
    figures.note(1, "state", "exp_avg` of `a.weight", 2.0, 1.0, 1.0)
    figures.miss(0, "buffer", "a.mean")
    rows, first = figures.rows((0, "gradient", ("a.weight",)))
    assert first == 1
    assert rows == [
        ParityRowPart("buffer", "a.mean", [None], [0.0], ["not-compared"]),
        ParityRowPart("gradient", "a.weight", [0.1], [0.02], ["first"]),
        ParityRowPart("state", "a.weight", [None, 2.0], [0.0, 1.0], ["nothing", "follows"]),
        ParityRowPart("update", "a.weight", [0.0, 3.0], [0.5], ["ok", "follows"]),
    ]
    assert figures.counts == (3, 4)


@pytest.mark.smoke
def test_a_long_run_has_its_last_steps() -> None:
    figures = Figures()
    for step in range(10):
        figures.note(step, "loss", "", float(step), 100.0, 1.0)
    figures.note(0, "weight", "a", 0.0, 0.0, 1.0)
    (start, loss), first = figures.rows(None)
    assert (start.errors, loss.errors, first) == ([0.0], [2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0], 3)
