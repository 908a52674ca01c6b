"""The page in a real browser: clicks, filters, the address, the keyboard. Its looks are in test_page_looks.py."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from everyrank.model.outcome import RED
from everyrank.reports.runfile.model import CaseLine

from tests.chromium import Browser
from tests.made_up_runs import MadeUp, case, header, made_up, run_of
from tests.pages import write

RUN = made_up(seed=2, cases=400)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(RUN, tmp_path_factory.mktemp("page"))


def _first_with(outcome: str) -> CaseLine:
    return next(line for line in RUN.cases if line.outcome == outcome and line.subject)


def _matches(browser: Browser) -> str:
    return browser.text("#matches")


def _rows(browser: Browser) -> list[str]:
    return browser.texts(".row .c-case")


@pytest.mark.smoke
def test_it_opens_without_a_complaint_and_asks_nobody_for_anything(browser: Browser, report: Path) -> None:
    browser.open(report)
    assert browser.complaints() == []
    assert browser.js("return performance.getEntriesByType('resource').length") == 0
    red = sum(line.outcome in RED for line in RUN.cases)
    assert browser.text("#sentence") == f"{red} of 400 cases need a person."


@pytest.mark.smoke
def test_each_outcome_is_counted_and_has_a_shape_of_its_own(browser: Browser, report: Path) -> None:
    browser.open(report)
    counts = Counter(line.outcome for line in RUN.cases)
    chips = {chip.get_attribute("data-outcome"): chip.text.split()[0] for chip in browser.all(".chip")}
    assert chips == {outcome: str(number) for outcome, number in counts.items()}
    shapes = [use.get_attribute("href") for use in browser.all(".chip use")]
    drawn = browser.js("return arguments[0].map((id) => document.querySelector(id).innerHTML)", shapes)
    assert len(set(drawn)) == len(chips) == len(RED - {"interrupted"}) + 6  # the run was not interrupted


@pytest.mark.smoke
def test_a_red_cell_leads_to_its_cause_in_one_click(browser: Browser, report: Path) -> None:
    browser.open(report)
    browser.click('.cell[data-outcome="fail"]')
    text = browser.case_opened()
    opened = next(line for line in RUN.cases if line.id == browser.state()["case"])
    assert opened.outcome == "fail"
    assert "fail: step 3, parameter layers.0.weight, on rank 1" in browser.text("#drawer .cause")
    assert browser.js("return document.querySelector('.failure').textContent") == opened.text
    assert opened.repeat in text
    assert browser.js("return document.querySelectorAll('.rank').length") == opened.size


def test_a_cell_describes_its_contents_to_screen_readers(browser: Browser, report: Path) -> None:
    browser.open(report)
    cases = [line for line in RUN.cases if (line.subject, line.law) == ("torch.ShardedOptimizer", "clip")]
    label = browser.js(
        "return [...document.querySelectorAll('.cell')].map((element) => element.ariaLabel)"
        ".find((element) => element.startsWith('clip, torch.ShardedOptimizer'))"
    )
    for outcome, number in Counter(line.outcome for line in cases).items():
        assert f"{number} {outcome}" in label


def test_a_subject_opens_to_law_by_optimizer_and_back_comes_back(browser: Browser, report: Path) -> None:
    browser.open(report)
    before = browser.texts(".card h2")
    browser.js(
        "[...document.querySelectorAll('.across')].find((element) => element.textContent === arguments[0]).click()",
        "torch.ShardedOptimizer",
    )
    browser.wait(lambda: browser.texts(".card h2") == ["torch.ShardedOptimizer"])
    optimizers = {line.optimizer for line in RUN.cases if line.subject == "torch.ShardedOptimizer"}
    assert browser.texts(".across") == sorted(optimizers)
    assert browser.state() == {"subject": "torch.ShardedOptimizer"}
    browser.back()
    browser.wait(lambda: browser.texts(".card h2") == before)


@pytest.mark.parametrize(
    ("field", "value", "holds"),
    [
        ("subject", "torch.replicate", lambda line: line.subject == "torch.replicate"),
        ("subject", "(none)", lambda line: not line.subject),
        ("law", "replicate/clip", lambda line: (line.contract, line.law) == ("replicate", "clip")),
        ("optimizer", "Adam", lambda line: line.optimizer == "Adam"),
        ("size", "3", lambda line: line.size == 3),
        ("worker", "gw1", lambda line: line.worker == "gw1"),
    ],
)
def test_a_choice_filters_and_stays_in_the_address(
    browser: Browser, report: Path, field: str, value: str, holds: object
) -> None:
    browser.open(report, view="cases")
    browser.choose(field, value)
    number = sum(map(holds, RUN.cases))  # type: ignore[arg-type]
    assert 0 < number < 400
    assert _matches(browser) == f"{number} of 400"
    assert browser.state() == {"view": "cases", field: value}
    browser.driver.refresh()
    browser.wait(lambda: browser.js("return document.documentElement.dataset.ready"))
    assert _matches(browser) == f"{number} of 400"
    assert browser.js("return document.getElementById(arguments[0]).value", f"filter-{field}") == value
    browser.click("#clear")
    assert browser.state() == {"view": "cases"}
    assert _matches(browser) == ""


def test_words_filter_as_they_are_typed_whatever_their_case_and_order(browser: Browser, report: Path) -> None:
    browser.open(report, view="cases")
    browser.find("#filter-q").send_keys("ADAGRAD clip")
    wanted = [line for line in RUN.cases if "adagrad" in line.id.lower() and "clip" in line.id]
    assert wanted
    browser.wait(lambda: _matches(browser) == f"{len(wanted)} of 400")
    assert browser.state()["q"] == "ADAGRAD clip"
    assert set(_rows(browser)) == {line.case for line in wanted}
    # Typing leaves no trail: back leaves the page as it was opened, not one letter earlier.
    browser.back()
    browser.wait(lambda: browser.driver.current_url == "about:blank")


def test_outcomes_are_filters_and_several_may_be_on(browser: Browser, report: Path) -> None:
    browser.open(report, view="cases")
    browser.click('.chip[data-outcome="fail"]')
    browser.click('.chip[data-outcome="crash"]')
    assert browser.state()["outcome"] == "crash,fail"
    number = sum(line.outcome in ("fail", "crash") for line in RUN.cases)
    assert _matches(browser) == f"{number} of 400"
    assert browser.find('.chip[data-outcome="fail"]').get_attribute("aria-pressed") == "true"
    browser.click('.chip[data-outcome="crash"]')
    assert browser.state()["outcome"] == "fail"
    browser.back()
    browser.wait(lambda: browser.state().get("outcome") == "crash,fail")
    assert _matches(browser) == f"{number} of 400"


def test_filters_that_leave_nothing_say_so(browser: Browser, report: Path) -> None:
    for view in ("matrix", "cases", "time", "findings"):
        browser.open(report, view=view, q="no such words")
        assert "0 of 400" in _matches(browser)
    browser.open(report, subject="gone.Subject")
    assert browser.text(".nothing") == "No case passes these filters."
    assert browser.find("#filter-subject").get_attribute("value") == "gone.Subject"


@pytest.mark.smoke
def test_a_page_opens_at_a_case_and_back_closes_it(browser: Browser, report: Path) -> None:
    timeout = _first_with("timeout")
    browser.open(report, view="findings", case=timeout.id)
    text = browser.case_opened()
    assert "the odd one out" in text
    browser.click("#close")
    assert browser.state() == {"view": "findings"}
    assert not browser.find("#drawer").is_displayed()
    browser.back()
    browser.wait(lambda: browser.find("#drawer").is_displayed())
    assert browser.state()["case"] == timeout.id


def test_a_case_that_this_page_does_not_have_is_reported_as_missing(browser: Browser, report: Path) -> None:
    browser.open(report, case="test_gone.py::test_gone")
    assert "This page has no case test_gone.py::test_gone." in browser.text("#drawer")
    assert browser.complaints() == []


def test_a_test_with_two_lines_has_two_addresses(browser: Browser, tmp_path: Path) -> None:
    lines = [case(outcome="fail", text="the first time"), case(outcome="pass")]
    browser.open(write(run_of(header(), lines), tmp_path), view="cases")
    browser.all(".row")[1].click()
    browser.case_opened()
    assert browser.state()["case"] == f"{lines[0].id} #2"
    assert browser.text("#drawer .outcome b") == "pass"


# --- the keyboard ------------------------------------------------------------------------------------------

RIGHT, LEFT, UP, DOWN, ENTER, ESCAPE = "\ue014", "\ue012", "\ue013", "\ue015", "\ue007", "\ue00c"


def _focused(browser: Browser) -> str:
    return str(browser.js("const on = document.activeElement; return on.dataset.cell || on.id"))


def test_arrows_go_over_cells_enter_opens_and_escape_comes_back(browser: Browser, report: Path) -> None:
    browser.open(report)
    browser.find("#filter-q").send_keys(ENTER)
    first = _focused(browser)
    assert first == "rpc-optimizer/parity.one-step\ntorch.DistributedOptimizer.eager"
    browser.keys(RIGHT)
    assert _focused(browser) == "rpc-optimizer/parity.one-step\neveryrank.RpcOptimizer"
    browser.keys(DOWN, LEFT)
    assert _focused(browser) == "rpc-optimizer/none.position\ntorch.DistributedOptimizer.eager"
    # Down out of the last row is the next table.
    browser.keys(DOWN, DOWN, DOWN, DOWN)
    assert _focused(browser) == "sharded-optimizer/parity.shard\ntorch.ShardedOptimizer"
    browser.keys(UP)
    assert _focused(browser).startswith("rpc-optimizer/state.kept\n")
    here = _focused(browser)
    browser.keys(ENTER)
    browser.case_opened()
    assert browser.state()["case"]
    browser.keys(ESCAPE)
    assert browser.state() == {}
    assert _focused(browser) == here


def test_only_one_cell_is_in_the_tab_order(browser: Browser, report: Path) -> None:
    browser.open(report)
    assert len(browser.all('.cell[tabindex="0"]')) == 1
    browser.find("#filter-q").send_keys(ENTER)
    browser.keys(DOWN, DOWN)
    assert len(browser.all('.cell[tabindex="0"]')) == 1


def test_the_list_is_walked_and_cases_leafed_through_by_keys(browser: Browser, report: Path) -> None:
    browser.open(report, view="cases", outcome="fail")
    order = [line.case for line in RUN.cases if line.outcome == "fail"]
    browser.find("#filter-q").send_keys(ENTER)
    assert _focused(browser) == "rows"
    rows = _rows(browser)
    assert sorted(rows) == sorted(order)
    browser.keys(DOWN, DOWN, UP, ENTER)
    assert rows[1] in browser.case_opened()
    browser.keys("j")
    assert rows[2] in browser.case_opened()
    browser.keys("k", "k")
    assert rows[0] in browser.case_opened()
    browser.keys("k")  # there is none before the first
    assert rows[0] in browser.case_opened()
    browser.keys(ESCAPE)
    assert _focused(browser) == "rows"


def test_slash_filters_digits_turn_views_and_escape_clears(browser: Browser, report: Path) -> None:
    browser.open(report)
    browser.keys("2")
    assert browser.state() == {"view": "cases"}
    browser.keys("/")
    browser.keys("muon")
    assert browser.state()["q"] == "muon"
    browser.keys(ESCAPE)  # out of the text
    assert _focused(browser) == "rows"
    browser.keys(ESCAPE)
    assert browser.state() == {"view": "cases"}
    browser.keys("3")
    assert browser.state() == {"view": "time"}
    assert browser.text("#views [aria-current]") == "Time"
    browser.keys("5")  # no history here
    assert browser.state() == {"view": "time"}


def test_a_question_mark_shows_the_keys(browser: Browser, report: Path) -> None:
    browser.open(report)
    browser.keys("?")
    assert browser.find("#help").is_displayed()
    assert "next and previous case" in browser.text("#help")
    browser.keys(ESCAPE)
    browser.wait(lambda: not browser.find("#help").is_displayed())


# --- many cases ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, MadeUp]:
    run = made_up(seed=5, cases=20_000, workers=8)
    return write(run, tmp_path_factory.mktemp("large")), run


def test_of_20_000_cases_only_those_in_sight_are_drawn(browser: Browser, large: tuple[Path, MadeUp]) -> None:
    file, run = large
    browser.open(file, view="cases")
    assert browser.js("return document.querySelectorAll('.row').length") < 80
    assert browser.find("#rows").get_attribute("aria-rowcount") == "20001"
    browser.js("const rows = document.getElementById('rows'); rows.scrollTop = rows.scrollHeight")
    last = [line.case or line.id.partition("::")[2] for line in run.cases if line.outcome == "pass"]
    shown = browser.wait(lambda: [row for row in _rows(browser) if row in last] and _rows(browser))
    assert len(shown) < 80
    browser.find("#filter-q").send_keys("sparseadam")
    number = sum("sparseadam" in line.id.lower() for line in run.cases)
    browser.wait(lambda: _matches(browser) == f"{number:,} of 20,000")


def test_the_list_is_sorted_by_what_is_clicked_and_turned_round_by_a_second_click(
    browser: Browser, large: tuple[Path, MadeUp]
) -> None:
    file, run = large
    browser.open(file, view="cases")
    browser.click(".heads .c-time")
    slowest = max(run.cases, key=lambda line: line.seconds)
    assert _rows(browser)[0] == slowest.case
    assert browser.find(".heads .c-time").get_attribute("aria-sort") == "ascending"
    browser.click(".heads .c-error")
    worst = max((line for line in run.cases if line.error), key=lambda line: line.error.ulps if line.error else 0)
    worst_ulps = worst.error.ulps if worst.error else 0
    first = next(line for line in run.cases if line.case == _rows(browser)[0])
    assert first.error is not None
    assert first.error.ulps == pytest.approx(worst_ulps, rel=0.01)
    browser.click(".heads .c-error")
    assert browser.state()["sort"] == "-error"
    browser.driver.refresh()
    browser.wait(lambda: browser.js("return document.documentElement.dataset.ready"))
    assert browser.find(".heads .c-error").get_attribute("aria-sort") == "descending"
