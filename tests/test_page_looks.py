"""The page in a real browser: what a case's drawer shows, texts that would break a page, time, themes, paper."""

from __future__ import annotations

import base64
from collections import Counter
from pathlib import Path

import pytest
from everyrank.reports.model import (
    RED,
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
from everyrank.reports.page.build import page
from everyrank.reports.reading import read

from tests.chromium import Browser
from tests.made_up_runs import NASTY, MadeUp, case, header, made_up, of

RUN = made_up(seed=2, cases=400)
VIEWS = ("matrix", "cases", "time", "findings")


def write(run: MadeUp, folder: Path, partial: bool = False) -> Path:
    """The page of a run."""
    file = folder / "report.html"
    file.write_text(page([read(run.write(folder / "run.jsonl"), partial)]), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(RUN, tmp_path_factory.mktemp("page"))


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


# --- findings and time -------------------------------------------------------------------------------------------


def test_red_cases_of_one_cause_are_told_once_and_lead_to_it(browser: Browser, tmp_path: Path) -> None:
    lines = [
        case(label=f"SGD-{at}", outcome="fail", message=f"step {at}, parameter 'p{at}': off by {at}.5e-3")
        for at in range(7)
    ]
    lines += [case(label="Adam", outcome="crash", message="rank 1 was killed by SIGKILL"), case(label="Muon")]
    browser.open(write(of(header(), lines), tmp_path), view="findings")
    assert browser.texts(".finding .number") == ["1", "7"]
    assert "8 cases, 2 causes" in browser.text("#main")
    browser.js("document.querySelectorAll('.cases summary')[1].click()")
    browser.wait(lambda: len(browser.all(".cases li")) == 7)
    browser.click(".finding[data-outcome='crash'] button.title")
    assert "was killed by SIGKILL" in browser.case_opened()


def test_the_timeline_has_a_band_a_worker_and_a_bar_leads_to_its_case(browser: Browser, report: Path) -> None:
    browser.open(report, view="time")
    worlds = {line.world for line in RUN.cases if line.world}
    assert f"{len(worlds)}\nworlds" in browser.text(".tiles")
    painted = browser.js("""
        const canvas = document.getElementById("timeline");
        const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
        const seen = new Set();
        for (let at = 0; at < pixels.length; at += 4)
          if (pixels[at + 3] === 255) seen.add(pixels.slice(at, at + 3).join());
        return seen.size;
    """)
    assert painted > 4
    slowest = max(RUN.cases, key=lambda line: line.seconds)
    start, end = RUN.header.started, max(line.started + line.seconds for line in RUN.cases)
    share = (slowest.started + slowest.seconds / 2 - start) / (end - start)
    browser.js(
        """
        const canvas = document.getElementById("timeline"), box = canvas.getBoundingClientRect();
        const at = { clientX: box.left + 64 + (box.width - 64) * arguments[0],
                     clientY: box.top + 22 + 42 * arguments[1] + 10, pointerId: 1, bubbles: true };
        canvas.setPointerCapture = () => {};
        canvas.dispatchEvent(new PointerEvent("pointerdown", at));
        canvas.dispatchEvent(new PointerEvent("pointerup", at));
        """,
        share,
        int(slowest.worker.removeprefix("gw")),
    )
    assert browser.state()["case"] == slowest.id


def test_where_the_time_went_is_summed_and_leads_on(browser: Browser, report: Path) -> None:
    browser.open(report, view="time")
    sums: Counter[str] = Counter()
    for line in RUN.cases:
        sums[line.optimizer or "no optimizer"] += line.seconds  # type: ignore[assignment]
    lists = browser.all(".ranking")
    by_optimizer = next(one for one in lists if one.text.startswith("By optimizer"))
    names = [line for line in by_optimizer.text.splitlines() if line in sums]
    assert names == [name for name, _ in sums.most_common(12)]
    browser.js("arguments[0].querySelector('button').click()", by_optimizer)
    assert browser.state() == {"view": "time", "optimizer": names[0]}


# --- what a run says of itself -------------------------------------------------------------------------------


def test_a_green_run_says_so_and_a_cut_one_never(browser: Browser, tmp_path: Path) -> None:
    green = of(header(), [case(), case(label="Adam", outcome="known")])
    browser.open(write(green, tmp_path))
    assert browser.text("#sentence") == "All 2 cases ended as declared."
    browser.open(write(green.cut_after(1), tmp_path, partial=True))
    told = browser.text("#sentence")
    assert told == "The run did not come to its end: 1 of 2 cases told. 1 of 2 cases needs a person."
    browser.open(write(of(header(), []), tmp_path))
    assert browser.text("#sentence") == "Nothing ran."
    assert browser.complaints() == []


# --- themes, narrow screens, paper ------------------------------------------------------------------------------


def _light(browser: Browser, selector: str) -> float:
    """How light a background is, of 255."""
    code = "return getComputedStyle(document.querySelector(arguments[0])).backgroundColor.match(/\\d+/g).map(Number)"
    red, green, blue = browser.js(code, selector)[:3]
    return float(red + green + blue) / 3


def test_it_is_dark_where_the_system_is_until_somebody_chooses(browser: Browser, report: Path) -> None:
    browser.open(report)
    assert _light(browser, "body") > 200
    browser.media(scheme="dark")
    browser.wait(lambda: _light(browser, "body") < 60)
    assert browser.one("#theme").get_attribute("aria-pressed") == "true"
    browser.keys("t")
    assert _light(browser, "body") > 200
    browser.driver.refresh()
    browser.wait(lambda: browser.js("return document.documentElement.dataset.ready"))
    assert _light(browser, "body") > 200
    browser.js("localStorage.clear()")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_can_be_read_on_their_grounds(browser: Browser, report: Path, scheme: str) -> None:
    """Contrast as WCAG computes it: 4.5 for text, 3 for what is told by shape and count too."""
    browser.open(report)
    browser.media(scheme=scheme)
    browser.wait(lambda: browser.js("return document.documentElement.dataset.theme") == scheme)
    ratios = browser.js(
        """
        const style = getComputedStyle(document.documentElement);
        const light = (name) => {
          const hex = style.getPropertyValue(name).trim();
          const [r, g, b] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16) / 255)
            .map((one) => (one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4));
          return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        };
        return arguments[0].map(([ink, ground]) => {
          const [one, other] = [light(ink), light(ground)].sort((a, b) => b - a);
          return [ink, ground, (one + 0.05) / (other + 0.05)];
        });
        """,
        [[ink, ground] for ink in ("--ink", "--soft", "--faint", "--accent") for ground in ("--paper", "--panel")]
        + [[f"--o-{outcome}", "--wash-red"] for outcome in sorted(RED)],
    )
    for ink, ground, ratio in ratios:
        assert ratio >= 4.5, (ink, ground, ratio)


def test_on_a_narrow_screen_nothing_reaches_over_the_edge_and_a_case_covers_it(
    browser: Browser, report: Path
) -> None:
    fail = next(line for line in RUN.cases if line.outcome == "timeout")
    for view in VIEWS:
        browser.open(report, view=view)
        browser.resize(390, 844)
        assert browser.js("return document.scrollingElement.scrollWidth <= innerWidth")
    browser.open(report, view="cases", case=fail.id)
    browser.resize(390, 844)
    browser.case_opened()
    box = browser.js("const b = document.getElementById('drawer').getBoundingClientRect(); return [b.left, b.width]")
    assert box == [0, 390]
    assert browser.js("const d = document.getElementById('drawer'); return d.scrollWidth <= d.clientWidth")
    # Tab stays in what covers the page.
    for _ in range(12):
        browser.keys("\ue004")
        assert browser.js("return document.getElementById('drawer').contains(document.activeElement)")


def test_on_paper_there_is_what_was_seen_and_nothing_to_press(browser: Browser, report: Path) -> None:
    fail = next(line for line in RUN.cases if line.outcome == "fail")
    browser.open(report, view="matrix", case=fail.id)
    browser.case_opened()
    browser.media("print", "dark")
    assert not browser.one("#filters").is_displayed()
    assert not browser.one(".copy").is_displayed()
    assert _light(browser, "body") == 255
    boxes = "const box = (id) => document.getElementById(id).getBoundingClientRect(); "
    assert browser.js(boxes + "return box('drawer').top >= box('main').bottom")
    printed = browser.cdp("Page.printToPDF", printBackground=True)["data"]
    assert base64.b64decode(printed).startswith(b"%PDF")
    browser.media()


def test_the_list_is_printed_beyond_what_is_in_sight(browser: Browser, report: Path) -> None:
    browser.open(report, view="cases")
    assert len(browser.all(".row")) < 80
    browser.js("window.dispatchEvent(new Event('beforeprint'))")
    assert len(browser.all(".row")) == 400
    browser.js("window.dispatchEvent(new Event('afterprint'))")
    assert len(browser.all(".row")) < 80
