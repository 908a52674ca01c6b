"""The page in a real browser: what became of a case with one of its collectives changed at a time."""

from __future__ import annotations

from pathlib import Path

from everyrank.model.mutation import MutantPart, MutationPart

from tests.chromium import Browser
from tests.made_up_runs import NASTY, case, header, run_of
from tests.pages import write

LINE = "model.py:88"
MUTANTS = [
    MutantPart("seed", "", "", "all ranks have the seed of rank 0", "unstable", "fail", "AssertionError: 2 != 3"),
    MutantPart("left-out", "all_reduce", LINE, f"the all_reduce at {LINE} is left out", "survived"),
    MutantPart("zero", "all_reduce", LINE, f"the all_reduce at {LINE} (call 1 of 2)", "killed", "fail", NASTY[0]),
    MutantPart("zero", "all_reduce", LINE, f"the all_reduce at {LINE} (call 2 of 2)", "redundant"),
    MutantPart("root", "broadcast", "init.py:3", "the broadcast at init.py:3 comes from rank 1", "redundant"),
]  # fmt: skip
MUTATION = MutationPart(3, 9, MUTANTS, ["all ranks had equal inputs"], 7)


def test_each_change_stands_at_its_line_and_survivors_are_sentences(browser: Browser, tmp_path: Path) -> None:
    green = case(mutation=MUTATION)
    browser.open(write(run_of(header(), [green]), tmp_path), case=green.id)
    text = browser.case_opened()
    for part in (
        f"Nothing notices if the all_reduce at {LINE} is left out.",
        "all ranks had equal inputs",
        "5 changes (a sample of 9, seed 7) of 3 collectives, 1 survived, 1 unstable, 1 killed, 2 redundant.",
    ):
        assert part in text, text
    assert browser.texts(".mutants thead th") == ["collective", "left-out", "zero", "root", "seed"]
    assert browser.texts(".mutants tbody th") == ["broadcast at init.py:3", f"all_reduce at {LINE}", "the whole test"]
    assert browser.texts(".mutants .mark") == ["=", "✕", "✓1/2", "!"]
    labels = browser.js("return [...document.querySelectorAll('.mutants .mark')].map((mark) => mark.ariaLabel)")
    assert labels[1] == f"no assertion notices it: the all_reduce at {LINE} is left out"
    assert labels[2] == f"the test failed: the all_reduce at {LINE} (call 1 of 2): {NASTY[0]}"
    assert browser.complaints() == []


def test_a_case_that_was_not_changed_has_no_such_part(browser: Browser, tmp_path: Path) -> None:
    browser.open(write(run_of(header(), [case()]), tmp_path), case=case().id)
    assert "Can it fail?" not in browser.case_opened()


def test_a_test_without_a_collective_has_the_remark_alone(browser: Browser, tmp_path: Path) -> None:
    green = case(mutation=MutationPart(remarks=["this multi-rank test made no collective that can be changed"]))
    browser.open(write(run_of(header(), [green]), tmp_path), case=green.id)
    text = browser.case_opened()
    assert "this multi-rank test made no collective that can be changed" in text
    assert browser.all(".mutants") == []


def test_a_remark_of_a_run_without_mutate_stands_there_too(browser: Browser, tmp_path: Path) -> None:
    green = case(remarks=["this multi-rank test made no collective"])
    browser.open(write(run_of(header(), [green]), tmp_path), case=green.id)
    text = browser.case_opened()
    assert "Can it fail?" in text
    assert "this multi-rank test made no collective" in text
