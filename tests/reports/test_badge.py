"""``everyrank badge``: what it counts, what it never hides, and how it looks."""

from __future__ import annotations

import xml.etree.ElementTree
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from everyrank.cli import main
from everyrank.model.outcome import Ending
from everyrank.reports.badge import Badge, as_json, as_svg, badge
from everyrank.reports.runfile.model import CaseLine, SinglePart
from everyrank.reports.runfile.read import read

from tests.made_up_runs import case, header, made_up, run_of


def _badge(folder: Path, *endings: Ending, reported: int | None = None) -> Badge:
    run = run_of(header(), [case(label=f"SGD-{number}", outcome=ending) for number, ending in enumerate(endings)])
    run = run if reported is None else run.stopped_after(reported)
    return badge(read(run.write(folder / "run.jsonl")), "mine.Optimizer")


@pytest.mark.parametrize(
    ("endings", "message", "colour"),
    [
        (["pass", "pass"], "2 of 2 hold", "brightgreen"),
        (["pass", "not-applicable"], "1 of 1 hold", "brightgreen"),
        (["pass", "skipped"], "1 of 1 hold, 1 skipped", "brightgreen"),
        (["pass", "approximate"], "2 of 2 hold, 1 approximate", "green"),
        (["pass", "unsupported"], "1 of 2 hold, 1 unsupported", "green"),
        (["pass", "known", "unsupported"], "1 of 3 hold, 1 known, 1 unsupported", "yellow"),
        (["pass", "not-run"], "1 of 2 hold, 1 not-run", "red"),
        (["pass", "interrupted"], "1 of 2 hold, 1 interrupted", "red"),
        (["pass", "fail", "crash"], "1 of 3 hold, 1 crash, 1 fail", "red"),
        (["pass", "stale"], "1 of 2 hold, 1 stale", "red"),
        (["not-applicable"], "nothing asked", "lightgrey"),
    ],
)
def test_it_counts_what_was_asked_of_the_subject(
    tmp_path: Path, endings: list[Ending], message: str, colour: str
) -> None:
    made = _badge(tmp_path, *endings)
    assert (made.label, made.message, made.colour) == ("everyrank", message, colour)


def test_cases_that_were_not_run_are_not_hidden(tmp_path: Path) -> None:
    made = _badge(tmp_path, "pass", "pass", "pass", reported=1)
    assert (made.message, made.colour) == ("1 of 3 hold, 2 not-run", "red")


def test_a_subject_without_a_line_is_not_hidden(tmp_path: Path) -> None:
    cases = [case(subject="mine.First"), case(subject="mine.Second")]
    run = run_of(header(subjects={"mine.First": "", "mine.Second": ""}), cases).stopped_after(1)
    made = badge(read(run.write(tmp_path / "run.jsonl")), "mine.Second")
    assert (made.message, made.colour) == ("0 of 1 hold, 1 not-run", "red")


def test_a_run_that_was_killed_is_labelled_as_killed(tmp_path: Path) -> None:
    run = run_of(header(), [case()]).cut_after(1)
    made = badge(read(run.write(tmp_path / "run.jsonl"), partial=True), "mine.Optimizer")
    assert (made.message, made.colour) == ("1 of 1 hold, run not whole", "lightgrey")


def test_other_subjects_do_not_count(tmp_path: Path) -> None:
    run = run_of(header(), [case(), case(subject="mine.Other", outcome="fail")])
    assert badge(read(run.write(tmp_path / "run.jsonl")), "mine.Optimizer").message == "1 of 1 hold"


def _of_tests(folder: Path, single: SinglePart | None, *endings: Ending) -> Badge:
    cases = [CaseLine(id=f"test_a.py::test_{number}", outcome=ending) for number, ending in enumerate(endings)]
    run = run_of(header(), cases)
    assert run.footer is not None
    run = replace(
        run, footer=msgspec.structs.replace(run.footer, single=single, exit=int(bool(single and single.failed)))
    )
    return badge(read(run.write(folder / "run.jsonl")))


@pytest.mark.parametrize(
    ("single", "endings", "message", "colour"),
    [
        (None, ["pass", "pass", "skipped"], "2 of 2 pass, 1 skipped", "brightgreen"),
        (SinglePart(passed=100, skipped=2), ["pass"], "101 of 101 pass, 2 skipped", "brightgreen"),
        (SinglePart(passed=3), ["pass", "timeout"], "4 of 5 pass, 1 timeout", "red"),
        (SinglePart(passed=3, failed=1), ["pass"], "4 of 5 pass, 1 single-process test failed", "red"),
        (SinglePart(passed=3), [], "nothing ran", "lightgrey"),
        (None, [], "nothing ran", "lightgrey"),
    ],
)
def test_of_a_run_without_subjects_it_counts_the_tests(
    tmp_path: Path, single: SinglePart | None, endings: list[Ending], message: str, colour: str
) -> None:
    made = _of_tests(tmp_path, single, *endings)
    assert (made.message, made.colour) == (message, colour)


def test_the_only_subject_need_not_be_named(tmp_path: Path) -> None:
    assert badge(read(run_of(header(), [case()]).write(tmp_path / "run.jsonl"))).message == "1 of 1 hold"


def test_json_is_what_shields_io_reads() -> None:
    assert msgspec.json.decode(as_json(Badge("everyrank", "2 of 2 hold", "green"))) == {
        "schemaVersion": 1, "label": "everyrank", "message": "2 of 2 hold", "color": "green",
    }  # fmt: skip


def test_the_picture_shows_the_text_of_the_badge_and_names_stay_text() -> None:
    picture = as_svg(Badge('<script>"&', "2 of 3 hold, 1 unsupported", "green"))
    root = xml.etree.ElementTree.fromstring(picture)
    space = "{http://www.w3.org/2000/svg}"
    assert [text.text for text in root.iter(f"{space}text")] == ['<script>"&', "2 of 3 hold, 1 unsupported"]
    assert root.get("aria-label") == '<script>"&: 2 of 3 hold, 1 unsupported'
    assert not list(root.iter(f"{space}script"))
    widths = [int(part.get("width", 0)) for part in root.iter(f"{space}rect")]
    assert widths[0] == widths[1] + widths[2] == int(root.get("width", 0))


def test_the_command_writes_what_the_name_ends_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run_of(header(), [case()]).write(tmp_path / "run.jsonl")
    given = ["badge", "run.jsonl", "--subject=mine.Optimizer"]
    assert main(given) == 0
    printed = capsys.readouterr().out
    assert main([*given, "-o", "badge.json"]) == 0
    assert (tmp_path / "badge.json").read_text() == printed
    assert main([*given, "--label", "laws", "-o", "badge.svg"]) == 0
    assert "laws: 1 of 1 hold" in (tmp_path / "badge.svg").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["run.jsonl", "--subject=mine.Optimiser"],
            "no case of a subject 'mine.Optimiser'; its subjects: mine.Optimizer",
        ),
        (["two.jsonl"], "several subjects: name one with --subject: mine.Optimizer, mine.Other"),
        (["run.jsonl", "--subject=mine.Optimizer", "-o", "badge.png"], "a badge is a .json or .svg file"),
        (["killed.jsonl", "--subject=mine.Optimizer", "-o", "badge.svg"], "no footer"),
        (["run.jsonl", "--subject=mine.Optimizer", "-o", "no/such/badge.svg"], "cannot be written: No such file"),
        (["run.json", "--subject=mine.Optimizer", "-o", "run.json"], "is an input of the command"),
        (["run.jsonl", "--subject=mine.Optimizer", "-o", "folder.svg"], "cannot be written: is a folder"),
    ],
)
def test_bad_input_is_one_line_and_overwrites_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    run_of(header(), [case()]).write(tmp_path / "run.jsonl")
    run_of(header(), [case()]).write(tmp_path / "run.json")
    run_of(header(), [case(), case(subject="mine.Other")]).write(tmp_path / "two.jsonl")
    made_up(cases=9).cut_after(3).write(tmp_path / "killed.jsonl")
    (tmp_path / "badge.svg").write_text("of last night")
    (tmp_path / "folder.svg").mkdir()
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    assert main(["badge", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before
