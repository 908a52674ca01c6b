"""The board in Chromium: its filters, its cells, and narrow screens."""

from __future__ import annotations

from pathlib import Path

import pytest
from everyrank.reports.board.board import board
from everyrank.reports.board.render import as_html
from everyrank.reports.runfile.read import read

from tests.chromium import Browser
from tests.made_up_runs import case, header, run_of


@pytest.fixture
def page(tmp_path: Path) -> Path:
    cases = [
        case("clip", outcome="fail", subject="first.ddp", message="step 1: off by 2", text="the failure"),
        *(case(law, subject="first.ddp") for law in ("state.kept", "mean", "loss", "alias", "crossings", "late")),
        case("clip", subject="second.ddp"),
        case("clip", subject="third.zero", contract="trainer"),
    ]
    made = run_of(header(packages={"first.ddp": "first 1.0", "second.ddp": "second 2.0"}), cases)
    path = tmp_path / "board.html"
    path.write_text(as_html(board([read(made.write(tmp_path / "run.jsonl"))])))
    return path


def _rows(browser: Browser) -> list[str]:
    code = "return [...document.querySelectorAll('tbody tr')].filter(r => r.offsetParent).map(r => r.dataset.words)"
    rows: list[str] = browser.js(code)
    return rows


def test_filters_leave_rows_and_tables_that_fit(browser: Browser, page: Path) -> None:
    browser.open(page)
    assert len(_rows(browser)) == 3
    browser.choose("outcome", "fail")
    browser.wait(lambda: _rows(browser) == ["first.ddp first 1.0"])
    assert browser.text("#shown") == "1 of 3 rows"
    assert len([table for table in browser.all("section") if table.is_displayed()]) == 1
    browser.choose("outcome", "")
    browser.choose("package", "second 2.0")
    browser.wait(lambda: _rows(browser) == ["second.ddp second 2.0"])
    browser.choose("package", "")
    browser.find("input").send_keys("ZERO")
    browser.wait(lambda: _rows(browser) == ["third.zero "])
    assert browser.complaints() == []


def test_a_red_cell_opens_its_failure_by_the_keyboard(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.js("document.querySelector('td.fail summary').focus()")
    browser.keys("\ue007")  # Enter
    assert "step 1: off by 2" in browser.text("details[open] .cases")


@pytest.mark.parametrize("width", [360, 800, 1440])
def test_the_table_scrolls_and_the_page_does_not(width: int, browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.resize(width, 800)
    assert browser.js("return document.documentElement.scrollWidth") <= width
