"""Which red cases have one cause, so that a person reads it once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from everyrank.model.outcome import Ending
from everyrank.reports.cause import causes
from everyrank.reports.diff import diff, render
from everyrank.reports.history.history import of_folder
from everyrank.reports.history.render import as_text
from everyrank.reports.runfile.model import CaseLine
from everyrank.reports.runfile.read import Run, read

from tests.made_up_runs import case, header, run_of

DAY = 86_400.0


def red(subject: str, law: str, message: str, outcome: Ending = "fail") -> CaseLine:
    return case(law, subject=subject, message=message, outcome=outcome)


def test_a_law_that_is_broken_alike_on_many_subjects_has_one_cause() -> None:
    broken = [
        red(f"mine.Trainer{letter}", "clip", f"off by {n}.5e-3") for n, letter in enumerate("ABCDEFGHIJKLMNOPQRSTU")
    ]
    assert set(causes(broken)) == {0}


def test_the_name_of_a_subject_in_its_message_makes_no_other_cause() -> None:
    messages = [("mine.First", "First.step() raised KeyError"), ("mine.Second", "Second.step() raised KeyError")]
    assert causes([red(subject, "clip", message) for subject, message in messages]) == [0, 0]


def test_laws_of_one_subject_that_are_broken_alike_have_one_cause() -> None:
    assert causes([red("a", "clip", "off by 1"), red("a", "tied", "off by 2")]) == [0, 0]


def test_another_law_of_another_subject_has_another_cause() -> None:
    assert causes([red("a", "clip", "off by 1"), red("b", "tied", "off by 2")]) == [0, 1]


def test_a_subject_that_breaks_two_laws_alike_joins_those_that_break_one_of_them() -> None:
    broken = [red("a", "clip", "off by 1"), red("b", "tied", "off by 1"), red("c", "clip", "off by 1")]
    assert causes([*broken, red("c", "tied", "off by 1")]) == [0, 0, 0, 0]


def test_another_end_another_message_and_another_line_have_other_causes() -> None:
    broken = [
        red("a", "clip", "waits at test_x.py:12"),
        red("a", "clip", "waits at test_x.py:13"),
        red("a", "clip", "waits at test_x.py:12", "timeout"),
        red("a", "clip", "raised KeyError"),
    ]
    assert causes(broken) == [0, 1, 2, 3]


def test_without_a_message_the_law_is_the_cause() -> None:
    assert causes([red("a", "clip", ""), red("b", "clip", ""), red("a", "tied", "")]) == [0, 0, 1]


def test_a_case_that_is_not_red_has_no_cause() -> None:
    assert causes([case(), red("a", "clip", "off by 1")]) == [-1, 0]


# --- in a diff, and over the nights --------------------------------------------------------------


def test_a_law_that_several_subjects_break_alike_is_one_block(tmp_path: Path) -> None:
    def night(outcome: Ending, *offs: float) -> Run:
        cases = [
            case("clip", label, subject=f"mine.Trainer{n}", outcome=outcome, message=f"off by {off}")
            for n, off in enumerate(offs)
            for label in ("SGD", "Adam")
        ]
        return read(run_of(header(), cases).write(tmp_path / f"{outcome}.jsonl"))

    found = diff.diff(night("pass", *range(7)), night("fail", *range(7)))
    block = """\
14 regressions
  7 subjects rpc-optimizer/clip: 14 cases pass -> fail
    mine.Trainer0, mine.Trainer1, ... and 5 more
    [SGD-ws2], [Adam-ws2]
    off by 0

"""
    assert block in render.as_text(found, 2)
    assert "- `7 subjects rpc-optimizer/clip`: 14 cases **pass -> fail**: `[SGD-ws2]`, `[Adam-ws2]`\n" in (
        render.as_markdown(found, 2)
    )
    assert "  - `mine.Trainer0`, `mine.Trainer1` and 5 more\n" in render.as_markdown(found, 2)


def test_a_law_that_two_subjects_break_differently_is_two_blocks(tmp_path: Path) -> None:
    subjects = {"a": "off by 1", "b": "raised KeyError"}
    before = run_of(header(), [case(subject=name) for name in subjects]).write(tmp_path / "before.jsonl")
    broken = [case(subject=name, outcome="fail", message=message) for name, message in subjects.items()]
    now = run_of(header(), broken).write(tmp_path / "now.jsonl")
    text = render.as_text(diff.diff(read(before), read(now)))
    assert "  a rpc-optimizer/parity.one-step: 1 case pass -> fail\n" in text
    assert "  b rpc-optimizer/parity.one-step: 1 case pass -> fail\n" in text


def _of_subjects(folder: Path, *nights: Sequence[str]) -> str:
    """Print the history of one law, with a letter for each subject in each night."""
    for number, letters in enumerate(nights):
        cases = [
            case("clip", subject=f"mine.T{n}", outcome="fail" if letter == "F" else "pass")
            for n, letter in enumerate(letters)
        ]
        run_of(header(started=1_780_000_000.0 + DAY * number), cases).write(folder / f"{number}.jsonl")
    return as_text(of_folder(folder))


def test_a_law_that_several_subjects_break_in_the_same_nights_is_one_line(tmp_path: Path) -> None:
    lines = _of_subjects(tmp_path, "......", "FFFFFF", "FFFFFF").splitlines()
    start = lines.index("red")
    assert lines[start + 1] == "  6 subjects rpc-optimizer/clip (mine.T0, mine.T1, mine.T2, mine.T3, ... and 2 more)"
    assert lines[start + 2].startswith("    [.FF] red since 2026-05-29 20:26 (1.jsonl); last 6 fail; 1 flip; ")
    assert len(lines) == start + 3


def test_a_law_that_subjects_break_in_different_nights_has_a_line_for_each(tmp_path: Path) -> None:
    text = _of_subjects(tmp_path, "..", "F.", "FF")
    assert "  mine.T0 rpc-optimizer/clip\n    [.FF] " in text
    assert "  mine.T1 rpc-optimizer/clip\n    [..F] " in text
