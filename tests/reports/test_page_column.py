"""A column of the page is one row of a table: with a row more, the page has the column in all its parts."""

from __future__ import annotations

from pathlib import Path

import pytest
from everyrank.reports.page import columns
from everyrank.reports.page.columns import COLUMNS, Column, column_data
from everyrank.reports.runfile.model import CaseLine

from tests.chromium import Browser
from tests.made_up_runs import MadeUp, case, header, made_up, run_of
from tests.pages import write

RULE = Column(
    name="rule", value=lambda case: case.rule, wide="90px", beside="80px", narrow="1 / 3",
    fact="rule: {}", filter="all rules", searched=True,
)  # fmt: skip
PHASES = Column(name="phases", value=lambda case: len(case.phases), kind="number", wide="70px", descending=True)

LINES = [
    case(label="Adam", started=1_780_000_000.0, rule="failed", outcome="fail"),
    case(label="AdamW", started=1_780_000_000.0, rule="deadline", outcome="timeout"),
    case(label="Muon", rule="$& passed <b>"),
    case(label="SGD", rule=""),
]


@pytest.fixture
def two_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "COLUMNS", (*COLUMNS, RULE, PHASES))


def _shown(browser: Browser, column: str) -> list[str]:
    return browser.texts(f".row .c-{column}")


def _headings(browser: Browser) -> list[str]:
    return [heading.removesuffix(" ↓") for heading in browser.texts(".heads button")]


@pytest.mark.usefixtures("two_more")
def test_a_row_is_a_column_of_the_list_with_heading_cells_width_and_sorting(browser: Browser, tmp_path: Path) -> None:
    page = write(run_of(header(), LINES), tmp_path)
    browser.open(page, view="cases")
    assert _headings(browser) == ["●", "case", "subject", "ranks", "time", "rule", "phases"]
    assert _shown(browser, "rule") == ["deadline", "failed", "$& passed <b>", ""]
    width = "return document.querySelector('.row .c-rule').getBoundingClientRect().width"
    assert browser.js(width) == 90
    browser.click(".heads .c-rule")
    assert browser.state() == {"view": "cases", "sort": "rule"}
    assert _shown(browser, "rule") == ["", "$& passed <b>", "deadline", "failed"]
    browser.click(".heads .c-rule")
    assert _shown(browser, "rule") == ["failed", "deadline", "$& passed <b>", ""]
    assert browser.complaints() == []


@pytest.mark.usefixtures("two_more")
def test_a_row_with_a_filter_filters_and_is_summed_and_stays_in_the_address(browser: Browser, tmp_path: Path) -> None:
    page = write(run_of(header(), LINES), tmp_path)
    browser.open(page, view="cases")
    assert browser.texts("#filter-rule option") == ["all rules", "no rule", "$& passed <b>", "deadline", "failed"]
    browser.choose("rule", "deadline")
    assert _shown(browser, "rule") == ["deadline"]
    browser.driver.refresh()
    browser.wait(lambda: browser.js("return document.documentElement.dataset.ready"))
    assert _shown(browser, "rule") == ["deadline"]
    browser.click("#clear")
    browser.find("#filter-q").send_keys("passed <b>")
    browser.wait(lambda: _shown(browser, "rule") == ["$& passed <b>"])
    browser.open(page, view="time")
    assert "By rule" in browser.texts(".ranking h3")


@pytest.mark.usefixtures("two_more")
def test_a_row_with_a_fact_is_in_the_drawer_if_the_case_has_a_value(browser: Browser, tmp_path: Path) -> None:
    page = write(run_of(header(), LINES), tmp_path)
    browser.open(page, view="cases", case=LINES[2].id)
    browser.case_opened()
    assert "rule: $& passed <b>" in browser.texts("#drawer .facts li")
    browser.open(page, view="cases", case=LINES[3].id)
    browser.case_opened()
    assert not [fact for fact in browser.texts("#drawer .facts li") if fact.startswith("rule")]


@pytest.mark.usefixtures("two_more")
def test_a_column_is_seen_only_where_its_row_has_room_for_it(browser: Browser, tmp_path: Path) -> None:
    page = write(run_of(header(), LINES), tmp_path)
    browser.open(page, view="cases", case=LINES[0].id)
    browser.resize(1700, 900)
    browser.wait(lambda: not browser.find(".row .c-phases").is_displayed())
    assert browser.find(".row .c-rule").is_displayed()
    browser.open(page, view="cases")
    browser.resize(420, 860)
    browser.wait(lambda: not browser.find(".row .c-phases").is_displayed())
    assert browser.find(".row .c-rule").is_displayed()


@pytest.mark.usefixtures("two_more")
def test_numbers_stand_at_the_right_and_the_largest_may_come_first(browser: Browser, tmp_path: Path) -> None:
    run = made_up(cases=40)
    browser.open(write(run, tmp_path), view="cases", sort="phases")
    assert _shown(browser, "phases")[0] == str(max(len(line.phases) for line in run.cases))
    align = "return getComputedStyle(document.querySelector(arguments[0])).textAlign"
    assert browser.js(align, ".row .c-phases") == "right"
    assert browser.js(align, ".row .c-rule") != "right"


def test_a_number_that_a_case_lacks_is_a_choice_of_its_own(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = Column(name="steps", value=lambda case: len(case.rule) or None, kind="number", wide="70px", filter="all")
    monkeypatch.setattr(columns, "COLUMNS", (*COLUMNS, steps))
    browser.open(write(run_of(header(), LINES), tmp_path), view="cases", sort="steps")
    assert _shown(browser, "steps") == ["", "6", "8", "13"]
    assert browser.texts("#filter-steps option") == ["all", "no steps", "6", "8", "13"]
    browser.choose("steps", "(none)")
    assert _shown(browser, "steps") == [""]


def test_a_column_without_a_value_is_left_out_of_the_list(browser: Browser, tmp_path: Path) -> None:
    def headings(run: MadeUp) -> list[str]:
        browser.open(write(run, tmp_path), view="cases")
        return _headings(browser)

    assert "message" not in headings(run_of(header(), [case()]))
    assert "message" in headings(run_of(header(), [case(), case(label="Adam", message="off by 1")]))


def _case(**changes: object) -> CaseLine:
    return case(**changes)  # type: ignore[arg-type]


def test_texts_are_in_the_data_once_and_numbers_as_they_are() -> None:
    data = column_data([_case(worker="gw1"), _case(worker="gw0"), _case(worker="gw1", seconds=2.5)])
    assert data["tables"]["worker"] == ["gw1", "gw0"]
    assert data["values"]["worker"] == [0, 1, 0]
    assert data["values"]["time"] == [100.0, 100.0, 2500.0]
    assert "time" not in data["tables"]
    assert data["values"]["lack"] == [-1, -1, -1]


def test_no_two_rows_have_one_name() -> None:
    assert len({column.name for column in COLUMNS}) == len(COLUMNS)
