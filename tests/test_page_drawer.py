"""The page in a real browser: all that a case's drawer tells, and texts that would break a page."""

from __future__ import annotations

from pathlib import Path

import pytest
from everyrank.reports.model import (
    CaseLine,
    ErrorPart,
    LeakPart,
    LedgerPart,
    OutputPart,
    PhasePart,
    RankPart,
    StancePart,
    StepPart,
)

from tests.chromium import Browser
from tests.made_up_runs import NASTY, case, header, of
from tests.pages import write

VIEWS = ("matrix", "cases", "time", "findings")


# --- the drawer -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, CaseLine]:
    """One case with all that a case can have, beside one that has nothing."""
    train = ["main.py:9 in main", "case.py:61 in run"]
    steps = [StepPart(1, 0.0, 0.0), StepPart(2, 1e-12, 4e3), StepPart(3, 1e-3, 4e12)]
    told = case(
        outcome="timeout",
        size=4,
        message="the world missed its deadline of 30 s",
        text="the whole failure\n  in two lines",
        rule="deadline",
        world="gw0-1",
        worker="gw0",
        started=1_780_000_001.0,
        seconds=30.5,
        phases=[PhasePart("setup", "passed", 0.5), PhasePart("call", "failed", 30.0)],
        ranks=[
            RankPart(0, "failed", "call", "ValueError: no", "train.py:4 in step", 0.2),
            RankPart(1, "lost", "call", "was killed by SIGKILL", "", 0.1),
            RankPart(2, "cut", "call", "", "", 30.0),
            RankPart(3, "passed", "", "", "", 0.3),
        ],
        error=ErrorPart(4e12, 2e-3, 1e-3, 3, "layers.0.weight", 2),
        steps=steps,
        leaks=[LeakPart("thread", "pt_gloo_runner", [0, 1, 2])],
        rollcall=[
            StancePart([3], "waiting in recv at loop.py:38", ["comm.py:5 in recv", *train]),
            StancePart([0, 1, 2], "waiting in all_reduce", ["comm.py:9 in all_reduce", "loop.py:40 in step", *train]),
        ],
        output=[OutputPart("stdout of rank 1", "epoch 1\nepoch 2")],
        ledger=LedgerPart("timeout", "https://example.org/issues/1", "it hangs", "mine.toml"),
        repeat="pytest 'test_mine.py::test_optimizer'",
        passes_alone=True,
    )
    run = of(header(), [told, case(label="Adam", seconds=0.0, size=0)])
    return write(run, tmp_path_factory.mktemp("rich")), told


def test_the_drawer_tells_all_that_is_known_of_a_case(browser: Browser, rich: tuple[Path, CaseLine]) -> None:
    file, told = rich
    browser.open(file, case=told.id)
    text = browser.case_opened()
    for part in (
        "timeout", "the world missed its deadline of 30 s", "passes alone", "mine.Optimizer", "4 ranks",
        "world gw0-1", "in two lines", "decided by the rule “deadline”", "ValueError: no", "train.py:4 in step",
        "was killed by SIGKILL", "the odd one out", "waiting in recv at loop.py:38", "ranks 0-2",
        "thread pt_gloo_runner", "4.0e12 ulp", "1.0e-3 relative", "at step 3 in layers.0.weight, rank 2", "epoch 2",
        "The ledger expects timeout", "it hangs", "mine.toml", "setup 0.50 s · call 30 s (failed)",
        "pytest 'test_mine.py::test_optimizer'", told.id,
    ):  # fmt: skip
        assert part in text, part
    link = browser.one("#drawer a")
    assert link.get_attribute("href") == "https://example.org/issues/1"
    assert "noopener" in link.get_attribute("rel")


def test_a_case_that_has_nothing_to_tell_has_no_empty_parts(browser: Browser, rich: tuple[Path, CaseLine]) -> None:
    browser.open(rich[0], case=case(label="Adam").id)
    browser.case_opened()
    assert browser.texts("#drawer h3") == []
    assert "no world" in browser.text("#drawer .facts")


def test_the_roll_call_is_a_lane_a_rank_and_shared_frames_are_one_station(
    browser: Browser, rich: tuple[Path, CaseLine]
) -> None:
    browser.open(rich[0], case=rich[1].id)
    browser.case_opened()
    assert browser.texts(".lanes .name") == ["rank 3", "rank 0", "rank 1", "rank 2"]
    assert len(browser.all(".lanes .lane")) == 4
    # The two frames of all ranks: one folded, one drawn; then the odd one goes on alone.
    assert browser.texts(".station.folded text") == ["+1"]
    drawn = browser.js("""
        return [...document.querySelectorAll(".station:not(.folded)")].map(
          (one) => [one.querySelector("title").textContent, one.querySelector("rect").height.baseVal.value])
    """)
    heights = dict(drawn)
    assert set(heights) == {"main.py:9 in main", "loop.py:40 in step", "comm.py:9 in all_reduce", "comm.py:5 in recv"}
    assert heights["main.py:9 in main"] > heights["comm.py:9 in all_reduce"] > heights["comm.py:5 in recv"]


def test_the_error_is_plotted_step_by_step_and_nought_lies_on_the_reference(
    browser: Browser, rich: tuple[Path, CaseLine]
) -> None:
    browser.open(rich[0], case=rich[1].id)
    browser.case_opened()
    label = browser.one(".plot").get_attribute("aria-label")
    assert label == "the error over 3 steps, relative: largest 1.0e-3 at step 3"
    places = "return [...document.querySelectorAll('.dot')].map((one) => one.cy.baseVal.value)"
    exact, small, large = browser.js(places)
    reference = browser.js("return document.querySelector('.reference').y1.baseVal.value")
    assert exact == reference > small > large
    told = browser.texts(".dot title")
    assert told == ["step 1: exact", "step 2: 1.0e-12 relative", "step 3: 1.0e-3 relative"]
    browser.js("[...document.querySelectorAll('.choice button')].find((one) => one.textContent === 'ulps').click()")
    assert browser.texts(".dot title")[2] == "step 3: 4.0e12 ulp"


def test_the_line_that_repeats_it_is_copied(browser: Browser, rich: tuple[Path, CaseLine]) -> None:
    browser.open(rich[0], case=rich[1].id)
    browser.case_opened()
    browser.click(".copy")
    browser.wait(lambda: browser.text(".copy") == "copied")
    browser.click("#close")
    browser.one("#filter-q").send_keys("\ue009v")  # Ctrl+V
    browser.wait(lambda: browser.one("#filter-q").get_attribute("value") == rich[1].repeat)


def test_what_is_no_web_address_is_no_link(browser: Browser, tmp_path: Path) -> None:
    ledgers = ["javascript:window.broken=1", "https://good.example/1", "unreported", "https://no\nlink"]
    lines = [
        case(label=f"SGD-{at}", outcome="known", ledger=LedgerPart("fail", issue, f"note {at}"))
        for at, issue in enumerate(ledgers)
    ]
    file = write(of(header(), lines), tmp_path)
    browser.open(file, view="findings")
    links = [one.get_attribute("href") for one in browser.all("main a")]
    assert links == ["https://good.example/1"]
    browser.open(file, case=lines[0].id)
    browser.case_opened()
    assert browser.all("#drawer a") == []


# --- texts that would break a page -----------------------------------------------------------------------------


@pytest.mark.parametrize("nasty", NASTY[:-1])
def test_texts_stay_texts_wherever_they_come(browser: Browser, nasty: str, tmp_path: Path) -> None:
    told = case(
        law=f"law{nasty}",
        label=f"label{nasty}",
        subject=f"subject{nasty}",
        optimizer=f"optimizer{nasty}",
        outcome="fail",
        message=f"message{nasty}",
        text=f"text{nasty}",
        world=f"world{nasty}",
        worker=f"worker{nasty}",
        started=1.0,
        ranks=[RankPart(0, "failed", "call", f"rank{nasty}", f"where{nasty}", 0.1)],
        error=ErrorPart(1.0, 1.0, 1.0, 1, f"name{nasty}", 0),
        steps=[StepPart(1, 1.0, 1.0)],
        leaks=[LeakPart(f"kind{nasty}", f"what{nasty}", [0])],
        rollcall=[StancePart([0], f"doing{nasty}", [f"frame{nasty}"], [f"native{nasty}"])],
        output=[OutputPart(f"name{nasty}", f"output{nasty}")],
        ledger=LedgerPart("fail", f"issue{nasty}", f"note{nasty}", f"file{nasty}"),
        lack=f"lack{nasty}",
        repeat=f"repeat{nasty}",
    )
    file = write(of(header(platform=f"platform{nasty}", command=[nasty]), [told]), tmp_path)
    for view in VIEWS:
        browser.open(file, view=view, case=told.id)
        browser.case_opened()
        assert browser.js("return window.broken") is None
        assert browser.complaints() == []
        assert browser.js("return document.querySelectorAll('script').length") == 3
    shown = browser.js("return document.querySelector('#drawer').textContent")
    for part in (
        "message", "text", "rank", "where", "name", "kind", "what", "doing", "frame", "native", "output", "issue",
        "note", "file", "lack", "repeat", "subject", "optimizer", "label", "world", "worker",
    ):  # fmt: skip
        assert f"{part}{nasty}" in shown, part
    browser.open(file, subject=told.subject, law=f"rpc-optimizer/{told.law}", q="message")
    assert browser.texts(".card h2") == [told.subject]
