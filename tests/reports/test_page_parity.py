"""The page in a real browser: what a call of parity has compared and found, and which rank holds what."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from everyrank.model.parity import (
    ParityFaultPart,
    ParityMapPart,
    ParityPart,
    ParityPassPart,
    ParityPlacementPart,
    ParityRegionPart,
    ParityRowPart,
)
from everyrank.reports.page.data import details
from everyrank.reports.runfile.model import CaseLine
from everyrank.reports.runfile.read import read

from tests.chromium import Browser
from tests.made_up_runs import NASTY, case, header, run_of
from tests.pages import write
from tests.reports.test_page_contrast import FAINT

BOUND = [1e-8]


def _rows(error: float) -> list[ParityRowPart]:
    """Return the rows of a model of two layers, whose last weight has a wrong gradient in the second step."""
    return [
        ParityRowPart("initialization", "first.weight", [0.0], BOUND),
        ParityRowPart("initialization", "last.weight", [0.0], BOUND),
        ParityRowPart("forward", "first", [0.0, 2e-16], BOUND),
        ParityRowPart("forward", "last", [None, None], [], ["not-compared"] * 2),
        ParityRowPart("loss", "", [1e-16, 3e-16], BOUND),
        ParityRowPart("gradient", "last.weight", [1e-12, error], BOUND, ["ok", "first"]),
        ParityRowPart("gradient", "first.weight", [1e-12, error], BOUND, ["ok", "same"]),
        ParityRowPart("norm", "", [1e-16, error], BOUND, ["ok", "follows"]),
        ParityRowPart("update", "last.weight", [1e-16, error], BOUND, ["ok", "follows"]),
    ]


FAULT = ParityFaultPart(
    "gradient", "last.weight", 2, "gradient of `last.weight` is not reduced over tp (step 2, fp64)", 0.5, 1e-8,
    "not-reduced", "each rank has its own part of a sum over ranks", [0, 1], ["fp64"],
)  # fmt: skip
MAPS = [
    ParityMapPart([8, 6], [0, 1], [ParityRegionPart([0, 1], [0, 8, 0, 6])]),
    ParityMapPart(
        [2, 8, 4], [0, 1],
        [
            ParityRegionPart([0], [0, 2, 0, 2]), ParityRegionPart([1], [0, 2, 2, 5]),
            ParityRegionPart([], [0, 2, 5, 6]), ParityRegionPart([0], [0, 2, 6, 8]),
        ],
        [2], True,
    ),
]  # fmt: skip
CALL = ParityPart(
    8, 9, ["fp64", "fp32"], 2, 3, "rows over dp", [FAULT],
    [ParityPassPart("fp64", _rows(0.5), 1, 2), ParityPassPart("fp32", _rows(1e308), 1, 2, 7)],
    MAPS, {"last.weight": 0, "first": 1}, ["forward last"], 3, [], ["dp", "tp"],
    [
        ParityPlacementPart("parameter", ["Replicate()", "Shard(0)"], ["first.weight", "last.weight"], 4),
        ParityPlacementPart("output", ["Shard(0)", ""], ["first"]),
    ],
)  # fmt: skip


def _red(call: ParityPart = CALL, **changes: object) -> CaseLine:
    return case(outcome="fail", message="parity: gradient of `last.weight`", parity=[call], parity_calls=1, **changes)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(run_of(header(), [_red(), case(label="Adam")]), tmp_path_factory.mktemp("parity"))


@pytest.fixture
def opened(browser: Browser, report: Path) -> Browser:
    browser.open(report, case=_red().id)
    browser.case_opened()
    return browser


def _labels(browser: Browser) -> list[str]:
    code = "return [...document.querySelectorAll('.mark')].map((mark) => mark.getAttribute('aria-label'))"
    return list(browser.js(code))


def test_a_case_has_the_fault_with_its_pattern_and_what_was_compared(opened: Browser) -> None:
    text = opened.case_opened()
    for part in (
        "not-reduced", "gradient of last.weight is not reduced over tp (step 2, fp64)", "pattern: not-reduced",
        "8 of 9 tensors compared on 2 ranks over 3 steps, in fp64 and fp32", "the batch is split: rows over dp",
        "Not compared: forward last and 3 more.", "Nearest to its bound in fp64: gradient of last.weight, step 1",
    ):  # fmt: skip
        assert part in text, part
    assert opened.complaints() == []


def test_modules_stand_down_and_kinds_and_steps_across(opened: Browser) -> None:
    assert opened.texts(".marks > tbody > tr:not(.opened) > th") == ["the whole model", "first", "last"]
    heads = [text for text in opened.texts(".marks > thead th") if text]
    assert heads == ["start", "output", "gradient", "update", "module / step", "0", "1", "2", "1", "2", "1", "2"]


def test_a_script_has_kinds_of_its_own_and_no_cell_where_is_nothing(browser: Browser, tmp_path: Path) -> None:
    rows = [
        ParityRowPart("buffer", "up.mean", [0.0, 0.0], BOUND),
        ParityRowPart("clip", "up.weight", [1e-9, 1e-9], BOUND),
        ParityRowPart("rate", "", [0.0, 0.5], BOUND, ["ok", "first"]),
        ParityRowPart("state", "up.weight", [None, 1e-9], BOUND, ["nothing", "ok"]),
    ]
    call = msgspec.structs.replace(CALL, faults=[], passes=[ParityPassPart("fp32", rows, 1, 2)])
    browser.open(write(run_of(header(), [_red(call)]), tmp_path), case=_red().id)
    browser.case_opened()
    assert [text for text in browser.texts(".marks > thead th") if text][:4] == [
        "buffers",
        "at the clip",
        "rate",
        "state",
    ]
    labels = _labels(browser)
    assert "the learning rate, step 2: deviates first, 0.5 of 1.0e-8" in labels
    assert [label for label in labels if "state" in label] == [
        "optimizer's state of up.weight, step 2: within its bound, 1.0e-9 of 1.0e-8"
    ]
    assert browser.complaints() == []


def test_a_table_has_the_placements_that_were_seen(opened: Browser) -> None:
    opened.js("document.querySelector('.placements summary').click()")
    assert opened.texts(".placements th") == ["over dp", "over tp", "", "tensors"]
    assert opened.texts(".placements tbody td") == [
        "Replicate()", "Shard(0)", "parameter", "first.weight, last.weight and 4 more",
        "Shard(0)", "?", "output", "first",
    ]  # fmt: skip
    assert opened.complaints() == []


def test_each_cell_has_a_label_of_words(opened: Browser) -> None:
    labels = _labels(opened)
    for label in (
        "the loss, step 2: within its bound, 3.0e-16 of 1.0e-8",
        "output of first, step 1: within its bound, 0 of 1.0e-8",
        "output of last, step 1: not compared",
        "gradient of last.weight, step 2: deviates first, 0.5 of 1.0e-8",
        "gradient of first.weight, step 2: the same has happened to it, 0.5 of 1.0e-8",
        "the norm of the gradients, step 2: follows from it, 0.5 of 1.0e-8",
    ):
        assert label in labels, labels


def test_cells_differ_by_a_sign_and_not_by_a_colour_alone(opened: Browser) -> None:
    code = """return Object.fromEntries([...document.querySelectorAll('.mark')].map((mark) =>
        [mark.dataset.state, mark.querySelector('.sign').textContent]))"""
    signs = opened.js(code)
    bad = [signs[state] for state in ("first", "same", "follows", "not-compared")]
    assert all(bad)
    assert len({*bad}) == 4


def test_the_cell_that_deviates_first_is_open_with_its_map(opened: Browser) -> None:
    text = opened.text(".tensors")
    for part in (
        "gradient, step 2",
        "not-reduced each rank has its own part of a sum",
        "0.5",
        "1.0e-8",
        "both ranks",
    ):
        assert part in text, text
    assert opened.texts(".map .ranks-of-part") == ["0-1"]


def test_a_map_shows_what_each_rank_holds_and_what_none_does(opened: Browser) -> None:
    opened.js(
        "[...document.querySelectorAll('.mark')].find((mark) => mark.title.startsWith('output of first')).click()"
    )
    assert len(opened.all(".map .held")) == 3
    assert len(opened.all(".map .lost")) == 1
    text = opened.text(".map-of-ranks")
    for part in (
        "2 x 8 x 4", "rank 0: 0-1 x 0-1, 0-1 x 6-7", "rank 1: 0-1 x 2-4", "no rank: 0-1 x 5",
        "Cut along dim 2, too, which is not drawn.", "Each rank has a term of a sum.",
    ):  # fmt: skip
        assert part in text, text


def test_a_part_that_is_equal_to_another_is_not_called_lost(browser: Browser, tmp_path: Path) -> None:
    call = msgspec.structs.replace(
        CALL, maps=[msgspec.structs.replace(MAPS[1], alike=True)], mapped={"last.weight": 0}
    )
    browser.open(write(run_of(header(), [_red(call)]), tmp_path), case=_red().id)
    browser.case_opened()
    assert (len(browser.all(".map .alike")), browser.all(".map .lost")) == (1, [])
    assert "equal to another part: 0-1 x 5" in browser.text(".map-of-ranks")


def test_a_cell_opens_and_closes_by_the_keyboard(opened: Browser) -> None:
    opened.js("document.querySelector('.mark[data-state=first]').focus()")
    opened.keys("\ue012")  # left
    focused = "return document.activeElement.getAttribute('aria-label')"
    assert opened.js(focused).startswith("gradient of last.weight, step 1")
    opened.keys("\ue013")  # up
    assert "gradient of first.weight, step 1" in opened.js(focused)
    opened.keys("\ue007")  # Enter
    assert opened.text(".tensors").startswith("gradient, step 1")
    opened.keys("\ue007")
    assert opened.all(".tensors") == []
    opened.keys("\ue00c")  # Escape closes the case
    assert "case" not in opened.state()


def test_another_dtype_has_its_own_errors_and_the_number_of_rows_left_out(opened: Browser) -> None:
    opened.js("document.querySelectorAll('.choice button')[1].click()")
    assert "gradient of last.weight, step 2: deviates first, ∞ of 1.0e-8" in _labels(opened)
    assert "7 rows of fp32 left out." in opened.text(".parity")


def test_of_very_many_modules_those_around_the_first_fault_are_drawn_and_the_others_on_demand(
    browser: Browser, tmp_path: Path
) -> None:
    rows = [ParityRowPart("forward", f"blocks.{number}", [0.0], BOUND) for number in range(200)]
    rows[100] = ParityRowPart("forward", "blocks.100", [1.0], BOUND, ["first"])
    call = msgspec.structs.replace(CALL, faults=[], passes=[ParityPassPart("fp64", rows, 1, 1)])
    browser.open(write(run_of(header(), [_red(call)]), tmp_path), case=_red().id)
    browser.case_opened()
    names = browser.texts(".marks > tbody > tr:not(.opened) > th")
    assert (names[0], names[4], len(names)) == ("blocks.96", "blocks.100", 40)
    browser.js("document.querySelector('.rest-of-modules button').click()")
    assert browser.texts(".marks > tbody > tr:not(.opened) > th")[0] == "blocks.0"
    browser.js("document.querySelector('.rest-of-modules button').click()")
    assert len(browser.texts(".marks > tbody > tr:not(.opened) > th")) == 200


def test_a_test_of_several_calls_shows_the_last_first_and_how_many_are_left_out(
    browser: Browser, tmp_path: Path
) -> None:
    line = case(parity=[CALL, CALL], parity_calls=9)
    browser.open(write(run_of(header(), [line]), tmp_path), case=line.id)
    text = browser.case_opened()
    assert text.index("Parity, call 9 of 9") < text.index("Parity, call 1 of 9")
    assert "7 calls left out." in text


def test_tests_are_filtered_by_their_pattern(browser: Browser, tmp_path: Path) -> None:
    stale = msgspec.structs.replace(CALL, faults=[msgspec.structs.replace(FAULT, pattern="stale")])
    lines = [_red(), _red(stale, label="Adam"), case(label="AdamW")]
    browser.open(write(run_of(header(), lines), tmp_path), view="cases")
    browser.choose("pattern", "stale")
    assert len(browser.all(".row")) == 1
    assert browser.state()["pattern"] == "stale"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_that_is_shown_stands_out(browser: Browser, report: Path, scheme: str) -> None:
    browser.open(report, case=_red().id)
    browser.media(scheme=scheme)
    browser.wait(lambda: browser.js("return document.documentElement.dataset.theme") == scheme)
    browser.case_opened()
    assert browser.js(FAINT) == []


@pytest.mark.parametrize("width", [1440, 900, 390])
def test_the_matrix_scrolls_in_itself_and_nothing_reaches_over_the_edge(
    browser: Browser, tmp_path: Path, width: int
) -> None:
    rows = [
        ParityRowPart(kind, f"a.long.name.of.a.module.{kind}", [0.0] * 8, BOUND) for kind in ("forward", "update")
    ]
    rows.append(ParityRowPart("gradient", "b", [0.5] * 8, BOUND, ["first"] * 8))
    call = msgspec.structs.replace(CALL, passes=[ParityPassPart("fp64", rows, 1, 8)], mapped={"b": 1})
    browser.open(write(run_of(header(), [_red(call)]), tmp_path), case=_red().id)
    browser.resize(width, 844)
    browser.case_opened()
    assert browser.js("const d = document.getElementById('drawer'); return d.scrollWidth <= d.clientWidth")
    seen = """const [outer, inner] = ['.parity .scroll', '.tensors'].map((name) => document.querySelector(name));
        return inner.getBoundingClientRect().width <= outer.clientWidth"""
    assert browser.js(seen)


def test_names_that_would_break_a_page_are_shown_as_they_are(browser: Browser, tmp_path: Path) -> None:
    rows = [ParityRowPart("forward", name, [0.5], BOUND, ["first"]) for name in NASTY]
    faults = [ParityFaultPart("forward", name, 1, name, 0.5, 1e-8, name, name) for name in NASTY]
    call = msgspec.structs.replace(
        CALL, faults=faults, split=NASTY[0], remarks=[*NASTY], passes=[ParityPassPart("fp64", rows, 1, 1)],
        mapped=dict.fromkeys(NASTY, 0), not_compared=[*NASTY],
    )  # fmt: skip
    browser.open(write(run_of(header(), [_red(call)]), tmp_path), case=_red().id)
    assert NASTY[0] in browser.case_opened()
    assert browser.js("return window.broken") is None
    assert browser.complaints() == []


# -- without a browser ----------------------------------------------------------------------------------------------


def test_a_page_that_would_be_too_large_has_fewer_rows(tmp_path: Path) -> None:
    rows = [ParityRowPart("gradient", f"layer{number}.weight", [number * 1e-15], BOUND) for number in range(900)]
    call = msgspec.structs.replace(CALL, passes=[ParityPassPart("fp64", rows, 1, 1)])
    run = read(run_of(header(), [_red(call, label=f"SGD-{n}") for n in range(40)]).write(tmp_path / "run.jsonl"))
    whole, harsh = (sum(map(len, details([run], budget=budget)[0])) for budget in (10_000_000, 1))
    assert harsh < whole / 4
