"""Which red cases have one cause, so that a person reads it once."""

from __future__ import annotations

from everyrank.model.outcome import Ending
from everyrank.reports.cause import causes
from everyrank.reports.runfile.model import CaseLine

from tests.made_up_runs import case


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
