"""The page of a suite that has no subject: it opens on the tests, file by file."""

from __future__ import annotations

from pathlib import Path

import pytest
from everyrank.model.outcome import Ending
from everyrank.model.result import StancePart
from everyrank.reports.runfile.model import CaseLine, OutputPart

from tests.chromium import Browser
from tests.made_up_runs import case, header, made_up, run_of
from tests.pages import write


def plain(id: str, outcome: Ending = "pass", **more: object) -> CaseLine:
    """A test of no subject."""
    return CaseLine(id=id, outcome=outcome, size=2, seconds=0.1, started=1_780_000_000.0, world="1", **more)  # type: ignore[arg-type]


SUITE = [
    plain("a/test_sum.py::test_ones"),
    plain(
        "a/test_sum.py::test_reduce", "fail", message="not close! Greatest absolute difference: 0.001 at index (3,)"
    ),
    plain("b/test_sum.py::test_ones", "crash", message="rank 1 was killed by SIGKILL"),
    plain("b/test_sum.py::test_reduce", "fail", message="not close! Greatest absolute difference: 0.5 at index (0,)"),
    plain("test_other.py::TestMany::test_ones[2]", output=[OutputPart("out", "text")]),
]


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(run_of(header(), SUITE), tmp_path_factory.mktemp("suite"))


def _lines(browser: Browser) -> list[str]:
    """The list as it is read from top to bottom: heads of files, and tests."""
    return browser.texts(".file [role=rowheader], .row .c-case")


def test_it_opens_on_the_tests_file_by_file_what_needs_a_person_first(browser: Browser, suite: Path) -> None:
    browser.open(suite)
    assert browser.text("#views [aria-current]") == "Tests 5"
    assert browser.text("#sentence") == "3 of 5 tests need a person."
    assert _lines(browser) == [
        "b/test_sum.py", "test_ones", "test_reduce",
        "a/test_sum.py", "test_reduce", "test_ones",
        "test_other.py", "TestMany::test_ones[2]",
    ]  # fmt: skip
    assert browser.texts(".file .sum") == ["2 red of 2", "1 red of 2", "1 test"]
    assert browser.texts(".heads button") == ["● ↓", "test", "ranks", "time", "message"]
    assert browser.complaints() == []


def test_a_page_with_a_subject_opens_on_the_matrix(browser: Browser, tmp_path: Path) -> None:
    browser.open(write(run_of(header(), [case(), *SUITE]), tmp_path))
    assert browser.text("#views [aria-current]") == "Matrix"


def test_tests_are_walked_leafed_through_and_opened_over_the_heads_of_files(browser: Browser, suite: Path) -> None:
    browser.open(suite)
    browser.find("#filter-q").send_keys("\ue007")
    browser.keys("\ue015", "\ue015", "\ue007")  # down, down, Enter: the third test
    browser.case_opened()
    assert browser.state()["case"] == "a/test_sum.py::test_reduce"
    assert browser.text("#drawer .facts li") == "a/test_sum.py"
    browser.keys("k")
    browser.case_opened()
    assert browser.state()["case"] == "b/test_sum.py::test_reduce"
    browser.keys("\ue00c")
    browser.js("document.querySelector('.file button').click()")
    assert browser.state() == {"law": "b/test_sum.py"}
    assert _lines(browser) == ["b/test_sum.py", "test_ones", "test_reduce"]


def test_tests_of_one_name_are_distinguished_wherever_they_are_named(browser: Browser, suite: Path) -> None:
    browser.open(suite, sort="case")
    assert browser.texts(".row .c-case")[:2] == ["a/test_sum.py::test_ones", "a/test_sum.py::test_reduce"]
    browser.open(suite, view="findings")
    # Both differ by figures only: one cause, in two files.
    browser.js("for (const one of document.querySelectorAll('.cases')) one.open = true")
    browser.wait(lambda: len(browser.all(".cases li")) == 3)
    assert [name.strip() for name in browser.texts(".cases li")] == [
        "b/test_sum.py::test_ones", "a/test_sum.py::test_reduce", "b/test_sum.py::test_reduce"
    ]  # fmt: skip
    assert "a/test_sum.py, b/test_sum.py" in browser.text("#main")
    browser.open(suite, view="time")
    slowest = [name.strip() for name in browser.texts(".ranking:last-child .name")]
    assert "a/test_sum.py::test_ones" in slowest
    assert "b/test_sum.py::test_ones" in slowest
    assert "By file" in browser.text(".rankings")
    for view in ("cases", "matrix", "time", "findings"):
        browser.open(suite, view=view)
        assert "without a subject" not in browser.text("body")


def test_a_name_that_only_one_file_can_have_needs_no_path(browser: Browser, tmp_path: Path) -> None:
    files = [plain("deep/down/test_one.py::test_it"), plain("deep/down/test_two.py::test_it")]
    browser.open(write(run_of(header(), files), tmp_path), sort="case")
    assert browser.texts(".row .c-case") == ["test_one.py::test_it", "test_two.py::test_it"]
    browser.open(write(run_of(header(), files[:1]), tmp_path))
    assert _lines(browser) == ["test_it"]


def test_a_choice_of_one_is_no_choice_but_one_that_was_asked_for_is_seen(browser: Browser, suite: Path) -> None:
    browser.open(suite)
    visible = "filter((element) => !element.hidden).map((element) => element.id)"
    seen = f"return [...document.querySelectorAll('#filters select')].{visible}"
    assert browser.js(seen) == ["filter-law"]
    assert browser.text("#filter-law option") == "all files"
    browser.open(suite, size="7")
    assert browser.js(seen) == ["filter-law", "filter-size"]
    assert browser.text(".nothing") == "No test passes these filters."


def test_a_deadlock_is_a_word_of_its_own_beside_a_timeout(browser: Browser, tmp_path: Path) -> None:
    tests = [
        plain("test_a.py::test_dead", "timeout", rule="deadlock", message="rank 1 ended its test"),
        plain("test_a.py::test_slow", "timeout", rule="deadline", message="rank 1 is in test_slow"),
    ]
    browser.open(write(run_of(header(), tests), tmp_path), case="test_a.py::test_dead")
    browser.case_opened()
    assert browser.text("#drawer .outcome b") == "deadlock"
    assert browser.texts("#outcomes .chip") == ["1timeout", "1deadlock"]
    browser.open(tmp_path / "report.html", outcome="deadlock")
    assert browser.texts(".row .c-case") == ["test_dead"]
    assert browser.text("#sentence") == "2 of 2 tests need a person."
    assert browser.complaints() == []


@pytest.mark.parametrize(
    ("rule", "first"), [("deadlock", "Roll call"), ("deadline", "Roll call"), ("failed", "Failure")]
)
def test_where_no_rank_failed_the_roll_call_stands_above_the_text(
    browser: Browser, tmp_path: Path, rule: str, first: str
) -> None:
    stances = [StancePart([0], "waiting in all_reduce at test_a.py:9", ["test_it at test_a.py:9"])]
    outcome: Ending = "fail" if rule == "failed" else "timeout"
    test = plain("test_a.py::test_it", outcome, rule=rule, text="the text", rollcall=stances)
    browser.open(write(run_of(header(), [test]), tmp_path), case=test.id)
    browser.case_opened()
    heads = [head for head in browser.texts("#drawer h3") if head.startswith(("Roll call", "Failure"))]
    assert heads[0].startswith(first)
    assert len(heads) == 2


def test_a_matrix_of_one_cell_is_no_view_and_a_run_without_tests_opens_on_the_list(
    browser: Browser, tmp_path: Path
) -> None:
    shown = "return [...document.querySelectorAll('#views button')].filter((tab) => !tab.hidden).map((tab) => tab.id)"
    browser.open(write(run_of(header(), SUITE[:2]), tmp_path))
    assert "view-matrix" not in browser.js(shown)
    browser.open(write(run_of(header(), SUITE), tmp_path))
    assert "view-matrix" in browser.js(shown)
    browser.open(write(run_of(header(), []), tmp_path))
    assert browser.js(shown)[0] == "view-cases"
    assert "view-matrix" not in browser.js(shown)
    assert browser.text(".nothing") == "This run has no multi-rank test."


def test_words_find_how_far_off_a_tensor_was(browser: Browser, suite: Path) -> None:
    browser.open(suite)
    browser.find("#filter-q").send_keys("0.001 (3,)")
    browser.wait(lambda: browser.text("#matches") == "1 of 5")
    assert _lines(browser) == ["a/test_sum.py", "test_reduce"]


def test_on_a_narrow_screen_a_test_has_its_message(browser: Browser, suite: Path) -> None:
    browser.open(suite)
    browser.resize(390, 844)
    browser.wait(lambda: browser.find(".row .c-message").is_displayed())
    assert browser.js("return document.scrollingElement.scrollWidth <= innerWidth")


def test_many_tests_are_drawn_as_far_as_they_are_in_sight(browser: Browser, tmp_path: Path) -> None:
    tests = [plain(f"test_{number // 40}.py::test_{number % 40}") for number in range(4000)]
    browser.open(write(run_of(header(), tests), tmp_path))
    assert browser.find("#rows").get_attribute("aria-rowcount") == "4101"
    assert len(browser.all(".row, .file")) < 80
    browser.open(write(run_of(header(), tests), tmp_path), case="test_99.py::test_39")
    browser.case_opened()
    browser.wait(lambda: browser.texts(".row .c-case")[-1] == "test_39")


def test_in_a_run_of_both_tests_stand_beside_subjects(browser: Browser, tmp_path: Path) -> None:
    run = made_up(seed=2, cases=200)
    browser.open(write(run, tmp_path), view="cases", subject="(none)")
    assert "test_all_reduce[<b>bold</b>-ws3]" in browser.texts(".row .c-case")
    assert browser.texts(".file") == []
