"""The page in a real browser: all that a case's drawer shows, and texts that would break a page."""

from __future__ import annotations

from pathlib import Path

import pytest
from everyrank.model.outcome import Ending
from everyrank.model.result import BlamePart, LeakPart, StancePart
from everyrank.reports.runfile.model import (
    AllowedPart,
    CaseLine,
    DeviationPart,
    ErrorPart,
    LedgerPart,
    OutputPart,
    PhasePart,
    RankPart,
    StepPart,
)

from tests.chromium import Browser
from tests.made_up_runs import NASTY, case, header, run_of
from tests.pages import write

VIEWS = ("matrix", "cases", "time", "findings")


# --- the drawer -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, CaseLine]:
    """One case with all that a case can have, beside one that has nothing."""
    train = ["main.py:9 in main", "case.py:61 in run"]
    steps = [StepPart(1, 0.0, 0.0), StepPart(2, 1e-12, 4e3), StepPart(3, 1e-3, 4e12)]
    line = case(
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
        blame=BlamePart([3], "waits in another call"),
        output=[OutputPart("stdout of rank 1", "epoch 1\nepoch 2\n")],
        ledger=LedgerPart("timeout", "https://example.org/issues/1", "it hangs", "mine.toml"),
        repeat="pytest 'test_mine.py::test_optimizer'",
        passes_alone=True,
    )
    run = run_of(header(), [line, case(label="Adam", seconds=0.0, size=0)])
    return write(run, tmp_path_factory.mktemp("rich")), line


@pytest.mark.parametrize(
    ("blame", "odd"),
    [
        (BlamePart([0, 1, 2], "does not wait"), ["ranks 0-2"]),
        (BlamePart([3], "does not wait"), ["rank 3"]),
        (BlamePart([5], "failed first"), []),  # it is in no roll call: it failed
        (BlamePart([0, 1, 2, 3], "does not wait"), []),
        (None, []),  # as in every file from before there was blame
    ],
)
def test_only_ranks_to_blame_are_marked(
    browser: Browser, tmp_path: Path, blame: BlamePart | None, odd: list[str]
) -> None:
    rollcall = [StancePart([3], "waiting in recv"), StancePart([0, 1, 2], "in lazy")]
    late = case(outcome="timeout", size=6, rollcall=rollcall, blame=blame)
    browser.open(write(run_of(header(), [late]), tmp_path), case=late.id)
    browser.case_opened()
    assert browser.texts(".stance.odd b") == odd
    assert len(browser.all(".stance .tag")) == len(odd)


def test_the_drawer_shows_all_that_is_known_of_a_case(browser: Browser, rich: tuple[Path, CaseLine]) -> None:
    file, line = rich
    browser.open(file, case=line.id)
    text = browser.case_opened()
    for part in (
        "timeout", "the world missed its deadline of 30 s", "passes alone", "mine.Optimizer", "4 ranks",
        "world gw0-1", "in two lines", "decided by the rule “deadline”", "ValueError: no", "train.py:4 in step",
        "was killed by SIGKILL", "the odd one out", "waiting in recv at loop.py:38", "ranks 0-2",
        "thread pt_gloo_runner", "Largest: 1.0e-3 relative", "at step 3 in layers.0.weight, rank 2", "epoch 2",
        "The ledger expects timeout", "it hangs", "mine.toml", "setup 0.5 s · call 30 s (failed)",
        "pytest 'test_mine.py::test_optimizer'", line.id,
    ):  # fmt: skip
        assert part in text, part
    link = browser.find("#drawer a")
    assert link.get_attribute("href") == "https://example.org/issues/1"
    assert "noopener" in link.get_attribute("rel")


def test_a_newline_at_the_end_of_captured_output_is_no_line(browser: Browser, rich: tuple[Path, CaseLine]) -> None:
    file, case = rich
    browser.open(file, case=case.id)
    browser.case_opened()
    assert "stdout of rank 1 2 lines" in browser.texts("#drawer summary")


def test_a_case_without_details_has_no_empty_parts(browser: Browser, rich: tuple[Path, CaseLine]) -> None:
    browser.open(rich[0], case=case(label="Adam").id)
    browser.case_opened()
    assert browser.texts("#drawer h3") == []
    assert "no world" in browser.text("#drawer .facts")


def _stations(browser: Browser) -> dict[str, float]:
    """How wide the station of each frame is, by what stands beside it."""
    widths = browser.js("""
        return [...document.querySelectorAll(".frame .station:not(.folded)")].map(
          (name) => [name.nextSibling.textContent, name.getBoundingClientRect().width])
    """)
    return dict(widths)


@pytest.mark.parametrize("width", [1440, 390])
def test_each_station_has_its_frame_beside_it_and_needs_no_pointer(
    browser: Browser, rich: tuple[Path, CaseLine], width: int
) -> None:
    browser.open(rich[0], case=rich[1].id)
    browser.resize(width, 844)
    text = browser.case_opened()
    for frame in ("main.py:9 in main", "comm.py:5 in recv", "loop.py:40 in step", "comm.py:9 in all_reduce"):
        assert frame in text
    assert browser.js("const d = document.getElementById('drawer'); return d.scrollWidth <= d.clientWidth")
    apart = browser.js("""
        return [...document.querySelectorAll(".frame")].every((one) => {
          const [station, says] = [...one.children].map((part) => part.getBoundingClientRect());
          return station.right <= says.left + 1 && Math.abs(station.top - says.top) < 12;
        })
    """)
    assert apart


def test_of_64_ranks_those_who_stood_together_have_one_lane(browser: Browser, tmp_path: Path) -> None:
    others = [rank for rank in range(64) if rank != 17]
    rollcall = [
        StancePart([17], "in lazy at a.py:9", ["lazy at a.py:9", "run at a.py:1"]),
        StancePart(others, "waiting in all_reduce at a.py:4", ["all_reduce at a.py:4", "run at a.py:1"]),
    ]
    late = case(outcome="timeout", size=64, rollcall=rollcall, blame=BlamePart([17], "does not wait"))
    browser.open(write(run_of(header(), [late]), tmp_path), case=late.id)
    browser.case_opened()
    assert len(browser.all(".lane")) == 2
    assert browser.texts(".stance b") == ["rank 17", "ranks 0-16,18-63"]
    assert list(_stations(browser)) == ["run at a.py:1", "lazy at a.py:9", "all_reduce at a.py:4"]


def test_the_roll_call_is_a_lane_a_rank_and_shared_frames_are_one_station(
    browser: Browser, rich: tuple[Path, CaseLine]
) -> None:
    browser.open(rich[0], case=rich[1].id)
    browser.case_opened()
    assert [element.get_attribute("title") for element in browser.all(".lanes .name")] == [
        "rank 3",
        "rank 0",
        "rank 1",
        "rank 2",
    ]
    assert browser.texts(".lanes .name") == ["3", "0", "1", "2"]
    assert len(browser.all(".lanes .lane")) == 4
    # The two frames of all ranks: one folded, one drawn; then the odd one goes on alone.
    assert browser.texts(".station.folded") == ["+1"]
    widths = _stations(browser)
    frames = ["main.py:9 in main", "comm.py:5 in recv", "loop.py:40 in step", "comm.py:9 in all_reduce"]
    assert list(widths) == frames
    assert widths["main.py:9 in main"] > widths["comm.py:9 in all_reduce"] > widths["comm.py:5 in recv"]
    browser.click(".frame button")
    assert list(_stations(browser)) == ["case.py:61 in run", *frames]


def test_the_error_is_plotted_step_by_step_and_nought_lies_on_the_reference(
    browser: Browser, rich: tuple[Path, CaseLine]
) -> None:
    browser.open(rich[0], case=rich[1].id)
    browser.case_opened()
    label = browser.find(".plot").get_attribute("aria-label")
    assert label == "the error over 3 steps, relative: largest 1.0e-3 at step 3"
    heights = "return [...document.querySelectorAll('.dot')].map((element) => element.cy.baseVal.value)"
    exact, small, large = browser.js(heights)
    reference = browser.js("return document.querySelector('.reference').y1.baseVal.value")
    assert exact == reference > small > large
    titles = browser.texts(".dot title")
    assert titles == ["step 1: exact", "step 2: 1.0e-12 relative", "step 3: 1.0e-3 relative"]
    browser.js(
        "[...document.querySelectorAll('.choice button')].find((element) => element.textContent === 'ulps').click()"
    )
    assert browser.texts(".dot title")[2] == "step 3: 4.0e12 ulp"


def _plotted(browser: Browser, folder: Path, allowed: AllowedPart | None) -> None:
    steps = [StepPart(1, 0.0, 0.0), StepPart(2, 1e-12, 3.0), StepPart(3, 1e-9, 4e6)]
    line = case(outcome="fail", steps=steps, error=ErrorPart(4e6, 1e-9, 1e-9, 3, "weight", 0, allowed))
    browser.open(write(run_of(header(), [line]), folder), case=line.id)
    browser.case_opened()


def test_the_plot_has_the_error_that_the_law_allows_and_marks_what_is_over_it(
    browser: Browser, tmp_path: Path
) -> None:
    _plotted(browser, tmp_path, AllowedPart(relative=1e-10, ulps=2))
    line = browser.js("return document.querySelector('line.allowed').y1.baseVal.value")
    within, over = browser.js(
        "return [...document.querySelectorAll('.dot')].map((element) => element.cy.baseVal.value)"
    )[1:]
    assert over < line < within
    assert browser.texts(".plot text.allowed") == ["allowed: 1.0e-10"]
    assert "Allowed: 1.0e-10 relative or 2 ulp." in browser.text("#drawer")
    assert browser.texts(".dot.over title") == ["step 3: 1.0e-9 relative"]
    browser.js(
        "[...document.querySelectorAll('.choice button')].find((element) => element.textContent === 'ulps').click()"
    )
    assert browser.texts(".plot text.allowed") == ["allowed: 2"]
    assert browser.texts(".dot.over title") == ["step 3: 4.0e6 ulp"]


def test_an_allowed_error_of_0_is_shown_and_an_older_file_shows_none(browser: Browser, tmp_path: Path) -> None:
    _plotted(browser, tmp_path, AllowedPart())
    assert "Allowed: nothing, it has to be bit for bit." in browser.text("#drawer")
    assert browser.all(".plot .allowed") == []
    assert len(browser.all(".dot.over")) == 2
    _plotted(browser, tmp_path, None)
    assert "Allowed" not in browser.text("#drawer")
    assert browser.all(".dot.over") == []


def test_the_line_that_repeats_it_is_copied(browser: Browser, rich: tuple[Path, CaseLine]) -> None:
    browser.open(rich[0], case=rich[1].id)
    browser.case_opened()
    browser.click(".copy")
    browser.wait(lambda: browser.text(".copy") == "copied")
    browser.click("#close")
    browser.find("#filter-q").send_keys("\ue009v")  # Ctrl+V
    browser.wait(lambda: browser.find("#filter-q").get_attribute("value") == rich[1].repeat)


def test_what_is_no_web_address_is_no_link(browser: Browser, tmp_path: Path) -> None:
    ledgers = ["javascript:window.broken=1", "https://good.example/1", "unreported", "https://no\nlink"]
    lines = [
        case(label=f"SGD-{number}", outcome="known", ledger=LedgerPart("fail", issue, f"note {number}"))
        for number, issue in enumerate(ledgers)
    ]
    file = write(run_of(header(), lines), tmp_path)
    browser.open(file, view="findings")
    links = [element.get_attribute("href") for element in browser.all("main a")]
    assert links == ["https://good.example/1"]
    browser.open(file, case=lines[0].id)
    browser.case_opened()
    assert browser.all("#drawer a") == []


def test_a_limit_that_the_library_documents_is_called_that_and_links_to_where(
    browser: Browser, tmp_path: Path
) -> None:
    link = "https://good.example/limits"
    entry = LedgerPart("documented", "", "keys begin with module.", "mine.toml", link)
    known = case(outcome="known", ledger=entry)
    file = write(run_of(header(), [known]), tmp_path)
    browser.open(file, view="findings")
    assert "documented by the library" in browser.text("main")
    assert "unreported" not in browser.text("main")
    browser.open(file, case=known.id)
    browser.case_opened()
    assert "The library documents this limit: keys begin with module." in browser.text("#drawer")
    assert [element.get_attribute("href") for element in browser.all("#drawer a")] == [link]


def test_a_known_deviation_shows_what_was_seen_and_not_only_the_note(browser: Browser, tmp_path: Path) -> None:
    raised = "<script>raised</script> KeyError"
    seen = [DeviationPart("step 2, a: off by 3", [0, 1], off=0.0171), DeviationPart(raised, [2])]
    states = "'fail', nothing raised, a text with 'off by'"
    entry = LedgerPart("fail", "unreported", "wrong", expects=states)
    known = case(outcome="known", size=3, ledger=entry, deviations=seen)
    browser.open(write(run_of(header(), [known]), tmp_path), case=known.id)
    browser.case_opened()
    shown = " ".join(browser.text("#drawer").split())
    assert (
        "What was seen ranks 0-1 step 2, a: off by 3 (off by 0.017 relative) rank 2 <script>raised</script> KeyError"
        in shown
    )
    assert f"It covers only what is seen so: {states}." in shown


def test_a_known_deviation_is_shown_once(browser: Browser, tmp_path: Path) -> None:
    seen, note = "raised KeyError: 'w'", "keys are lost"
    message = f"known: {note} (unreported): {seen}"
    known = case(
        outcome="known",
        size=3,
        message=message,
        ledger=LedgerPart("fail", "unreported", note, expects="'fail', raises KeyError"),
        deviations=[DeviationPart(seen, [0, 1, 2], ["KeyError"])],
        ranks=[RankPart(rank, "failed", "call", f"XFailed: {message}") for rank in range(3)],
    )
    browser.open(write(run_of(header(), [known]), tmp_path), case=known.id)
    shown = browser.case_opened()
    assert (shown.count(note), shown.count(seen)) == (1, 1)


def test_the_lines_of_code_stand_at_the_frames_of_the_roll_call(browser: Browser, tmp_path: Path) -> None:
    frames = ["all_reduce at torch/distributed/distributed_c10d.py:9", "test_sum at test_sum.py:4"]
    stance = StancePart([0], "waiting in all_reduce", frames, code=["", "dist.all_reduce(total)"])
    hang = case(outcome="timeout", size=1, rollcall=[stance])
    browser.open(write(run_of(header(), [hang]), tmp_path), case=hang.id)
    browser.case_opened()
    assert browser.texts(".lanes .frame .source") == ["dist.all_reduce(total)"]


def test_a_key_opens_the_next_red_case_and_goes_round(browser: Browser, tmp_path: Path) -> None:
    endings: list[Ending] = ["pass", "fail", "pass", "crash"]
    lines = [case(label=f"SGD-{number}", outcome=ending) for number, ending in enumerate(endings)]
    browser.open(write(run_of(header(), lines), tmp_path), view="cases", sort="case")
    opened = []
    for key in ("n", "n", "n", "N", "N"):
        browser.keys(key)
        opened.append(browser.state()["case"])
    fail, crash = lines[1].id, lines[3].id
    assert opened == [fail, crash, fail, crash, fail]


def test_what_a_subject_refused_is_listed_with_the_error(browser: Browser, tmp_path: Path) -> None:
    refused = case(outcome="pass", size=2, refused={"scheduler": "TypeError: <b>not</b> an Optimizer", "repr": "no"})
    browser.open(write(run_of(header(), [refused]), tmp_path), case=refused.id)
    browser.case_opened()
    shown = " ".join(browser.text("#drawer").split())
    assert "Refused scheduler: TypeError: <b>not</b> an Optimizer repr: no" in shown


# --- texts that would break a page -----------------------------------------------------------------------------


@pytest.mark.parametrize("nasty", NASTY[:-1])
def test_texts_stay_texts_wherever_they_come(browser: Browser, nasty: str, tmp_path: Path) -> None:
    line = case(
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
    file = write(run_of(header(platform=f"platform{nasty}", command=[nasty]), [line]), tmp_path)
    for view in VIEWS:
        browser.open(file, view=view, case=line.id)
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
    browser.open(file, subject=line.subject, law=f"rpc-optimizer/{line.law}", q="message")
    assert browser.texts(".card h2") == [line.subject]
