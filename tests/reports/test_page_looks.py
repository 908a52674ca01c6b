"""The page in a real browser: findings, time, what a run says of itself, themes, narrow screens, paper."""

from __future__ import annotations

import base64
from collections import Counter
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from everyrank.model.outcome import RED
from everyrank.reports.page.outcomes import SHOWN
from everyrank.reports.runfile.model import CrossedPart

from tests.chromium import Browser
from tests.made_up_runs import case, header, made_up, run_of
from tests.pages import write

RUN = made_up(seed=2, cases=400)
VIEWS = ("matrix", "cases", "time", "findings")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(RUN, tmp_path_factory.mktemp("page"))


# --- findings and time -------------------------------------------------------------------------------------------


def test_red_cases_of_one_cause_are_shown_once_and_lead_to_it(browser: Browser, tmp_path: Path) -> None:
    lines = [
        case(
            label=f"SGD-{number}",
            outcome="fail",
            message=f"step {number}, parameter 'p{number}': off by {number}.5e-3",
        )
        for number in range(7)
    ]
    lines += [case(label="Adam", outcome="crash", message="rank 1 was killed by SIGKILL"), case(label="Muon")]
    browser.open(write(run_of(header(), lines), tmp_path), view="findings")
    assert browser.texts(".finding .number") == ["1", "7"]
    assert "8 cases, 2 causes" in browser.text("#main")
    browser.js("document.querySelector('.cases summary').click()")
    browser.wait(lambda: len(browser.all("details.cases li")) == 7)
    browser.click(".finding[data-outcome='crash'] button.title")
    assert "was killed by SIGKILL" in browser.case_opened()


def test_a_law_that_all_subjects_break_alike_is_one_finding_and_a_single_case_needs_no_opening(
    browser: Browser, tmp_path: Path
) -> None:
    lines = [case("clip", subject=f"mine.T{n}", outcome="fail", message=f"off by {n}") for n in range(21)]
    lines.append(case("tied", outcome="crash", message="killed by SIGKILL"))
    browser.open(write(run_of(header(), lines), tmp_path), view="findings")
    assert browser.texts(".finding .number") == ["1", "21"]
    assert "21 subjects: mine.T0, mine.T1, mine.T2 and 18 more" in browser.text("#main")
    browser.click(".finding .cases li button")
    assert browser.state()["case"] == lines[-1].id


def test_two_hangs_at_two_lines_are_two_causes_and_one_hang_on_more_ranks_is_one_cause(
    browser: Browser, tmp_path: Path
) -> None:
    hangs = [
        "rank 1 is in lazy at test_red.py:30; ranks 0,2,3 wait in all_reduce at test_red.py:25 (deadline 3 s)",
        "rank 1 is in lazy at test_red.py:30; ranks 0,2 wait in all_reduce at test_red.py:25 (deadline 60 s)",
        "rank 1 is in lazy at test_red.py:70; ranks 0,2,3 wait in all_reduce at test_red.py:25 (deadline 3 s)",
    ]
    lines = [case(label=f"SGD-{number}", outcome="timeout", message=hang) for number, hang in enumerate(hangs)]
    browser.open(write(run_of(header(), lines), tmp_path), view="findings")
    assert "3 cases, 2 causes" in browser.text("#main")


def test_of_very_many_causes_the_first_are_drawn_and_the_rest_on_demand(browser: Browser, tmp_path: Path) -> None:
    causes = ["".join(chr(97 + int(digit)) for digit in str(number)) for number in range(130)]
    lines = [case(label=f"SGD-{cause}", outcome="fail", message=f"no {cause}") for cause in causes]
    browser.open(write(run_of(header(), lines), tmp_path), view="findings")
    assert "130 cases, 130 causes" in browser.text("#main")
    assert len(browser.all(".finding")) == 100
    browser.js("document.querySelector('.more').click()")
    assert len(browser.all(".finding")) == 130
    assert browser.all(".more") == []


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


def _span(browser: Browser) -> tuple[float, float]:
    return tuple(float(browser.find("#timeline").get_attribute(f"data-{end}")) for end in ("from", "to"))  # type: ignore[return-value]


def test_filtering_zooms_the_timeline_to_what_is_left(browser: Browser, report: Path) -> None:
    browser.open(report, view="time")
    whole = _span(browser)
    assert whole[0] == 0
    browser.choose("law", "replicate/uneven")
    browser.choose("optimizer", "LBFGS")
    left = [line for line in RUN.cases if (line.law, line.optimizer) == ("uneven", "LBFGS")]
    start = min(line.started for line in left) - RUN.header.started
    end = max(line.started + line.seconds for line in left) - RUN.header.started
    seen = _span(browser)
    assert seen[1] - seen[0] < (whole[1] - whole[0]) * 0.9
    assert seen[0] <= start * 1000 + 1
    assert seen[1] >= end * 1000 - 1
    browser.click("#clear")
    assert _span(browser) == whole


def test_keys_zoom_and_move_the_timeline_and_nought_shows_it_whole(browser: Browser, report: Path) -> None:
    browser.open(report, view="time")
    whole = _span(browser)
    browser.find("#filter-q").send_keys("\ue007")  # Enter: to the canvas
    browser.keys("+", "+")
    near = _span(browser)
    assert near[1] - near[0] == pytest.approx((whole[1] - whole[0]) * 0.49, rel=0.01)
    browser.keys("\ue014")  # right
    assert _span(browser)[0] > near[0]
    browser.keys("0")
    assert _span(browser) == whole
    browser.keys("-")  # there is nothing beyond
    assert _span(browser) == whole


def test_where_the_time_went_is_summed_and_leads_on(browser: Browser, report: Path) -> None:
    browser.open(report, view="time")
    sums: Counter[str] = Counter()
    for line in RUN.cases:
        sums[line.optimizer or "no optimizer"] += line.seconds  # type: ignore[assignment]
    lists = browser.all(".ranking")
    by_optimizer = next(element for element in lists if element.text.startswith("By optimizer"))
    names = [line for line in by_optimizer.text.splitlines() if line in sums]
    assert names == [name for name, _ in sums.most_common(12)]
    browser.js("arguments[0].querySelector('button').click()", by_optimizer)
    assert browser.state() == {"view": "time", "optimizer": names[0]}


# --- what a run says of itself -------------------------------------------------------------------------------


def test_a_green_run_is_called_green_and_a_cut_run_never_is(browser: Browser, tmp_path: Path) -> None:
    green = run_of(header(workers=1, seed=0), [case(), case(label="Adam", outcome="known")])
    browser.open(write(green, tmp_path))
    assert browser.text("#sentence") == "All 2 cases ended as declared."
    assert "NaN" not in browser.text("#facts")
    assert "undefined" not in browser.text("#facts")
    browser.open(write(green.cut_after(1), tmp_path, partial=True))
    sentence = browser.text("#sentence")
    assert sentence == "The run did not finish: 1 of 2 cases reported. 1 of 2 cases needs a person."
    browser.open(write(run_of(header(), []), tmp_path))
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
    assert browser.find("#theme").get_attribute("aria-pressed") == "true"
    browser.keys("t")
    assert _light(browser, "body") > 200
    browser.driver.refresh()
    browser.wait(lambda: browser.js("return document.documentElement.dataset.ready"))
    assert _light(browser, "body") > 200
    browser.js("localStorage.clear()")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_can_be_read_on_their_grounds(browser: Browser, report: Path, scheme: str) -> None:
    """Contrast as WCAG computes it: 4.5 for text, 3 for what shape and count show too."""
    browser.open(report)
    browser.media(scheme=scheme)
    browser.wait(lambda: browser.js("return document.documentElement.dataset.theme") == scheme)
    ratios = browser.js(
        """
        const style = getComputedStyle(document.documentElement);
        const light = (name) => {
          const hex = style.getPropertyValue(name).trim();
          const [r, g, b] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16) / 255)
            .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
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
    assert not browser.find("#filters").is_displayed()
    assert not browser.find(".copy").is_displayed()
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


# --- names and shapes --------------------------------------------------------------------------------------------


def test_names_of_subjects_break_where_their_words_end(browser: Browser, tmp_path: Path) -> None:
    name = "torch.distributed.algorithms.PostLocalSGDOptimizerWithAveraging.eager"
    browser.open(write(run_of(header(), [case(subject=name, outcome="fail"), case(subject="mine.Two")]), tmp_path))
    broken = """
        return [...document.querySelectorAll(arguments[0])].flatMap((node) => [...node.childNodes])
          .filter((element) => element.nodeType === 3)
          .filter((one) => {
            const range = document.createRange();
            range.selectNodeContents(one);
            return range.getClientRects().length > 1;
          })
          .map((element) => element.data);
    """
    assert browser.texts(".across")[0] == name
    assert browser.js(broken, ".across") == []
    fits = "const a = document.querySelector('.across'); return a.scrollHeight <= a.clientHeight + 1"
    assert browser.js(fits)
    browser.open(write(run_of(header(), [case(subject=name, outcome="fail")]), tmp_path), case=case(subject=name).id)
    browser.resize(390, 844)
    browser.case_opened()
    assert browser.texts(".facts li")[0] == name
    assert browser.js(broken, ".facts li") == []
    assert browser.js("const d = document.getElementById('drawer'); return d.scrollWidth <= d.clientWidth")


def test_the_help_names_the_meaning_of_each_shape(browser: Browser, report: Path, tmp_path: Path) -> None:
    browser.open(report)
    browser.keys("?")
    shapes = browser.js("""
        return [...document.querySelectorAll("#shapes div")].map((row) => [
          row.querySelector("use").getAttribute("href").slice(3),
          row.querySelector("dt").textContent.trim(), row.querySelector("dd").textContent])
    """)
    assert [(shape, word) for shape, word, _ in shapes] == [(outcome, outcome) for outcome in SHOWN]
    meanings = {word: meaning for _, word, meaning in shapes}
    assert meanings["known"] == "a deviation that the ledger knows"
    assert meanings["unsupported"] == "a declared lack, refused as declared"
    assert meanings["skipped"] == "skipped, with a reason"
    assert browser.find("#shapes").is_displayed()
    browser.resize(390, 844)
    assert browser.js("const d = document.getElementById('help'); return d.scrollWidth <= d.clientWidth")


def test_the_findings_say_of_each_subject_in_sight_what_a_green_of_its_crossings_means(
    browser: Browser, tmp_path: Path
) -> None:
    run = run_of(header(), [case()])
    shown = CrossedPart(run.cases[0].contract, run.cases[0].subject, 1, (2, 3), (1, 8), (0, 0))
    other = CrossedPart("trainer", "somebody.else", 7, (3, 3), (8, 8), (5, 5))
    assert run.footer is not None
    footer = msgspec.structs.replace(run.footer, crossings=[shown, other])
    browser.open(write(replace(run, footer=footer), tmp_path), view="findings")
    (line,) = browser.texts(".crossed")
    shares = "66 % of pairs of moves in a row, 12 % of triples in their order"
    assert line == f"{shown.subject} {shown.contract}, 1 script: {shares}"
