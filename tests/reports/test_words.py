"""Times that exist, and counts of what was left out that are right however often a text was cut."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest
from everyrank.reports.live.line import TEXT
from everyrank.reports.page.columns import MESSAGE
from everyrank.reports.page.data import page_data
from everyrank.reports.runfile.read import read
from everyrank.reports.shorten import OWN_LINE, WITHIN, cut_middle
from everyrank.reports.text import duration
from everyrank.wire import truncate

from tests.chromium import Browser
from tests.made_up_runs import case, header, run_of
from tests.pages import write

#: At each boundary, just below it, on it and above.
TIMES = [
    (-1.0, "0 s"), (0.0, "0 s"), (1e-9, "under 0.1 ms"), (0.0000949, "under 0.1 ms"), (0.0001, "0.1 ms"),
    (0.00123, "1.2 ms"), (0.00994, "9.9 ms"), (0.00996, "10 ms"), (0.0994, "99 ms"), (0.0996, "0.1 s"),
    (0.25, "0.25 s"), (0.9949, "0.99 s"), (0.9951, "1 s"), (1.0, "1 s"), (1.04, "1 s"), (9.94, "9.9 s"),
    (9.96, "10 s"), (59.4, "59 s"), (59.6, "1 min"), (60.0, "1 min"), (60.6, "1 min 1 s"), (64.0, "1 min 4 s"),
    (99.6, "1 min 40 s"), (119.4, "1 min 59 s"), (119.6, "2 min"), (539.6, "9 min"), (540.0, "9 min"),
    (3599.4, "59 min 59 s"), (3599.6, "1 h"), (3600.0, "1 h"), (3629.0, "1 h"), (3631.0, "1 h 1 min"),
    (7169.0, "1 h 59 min"), (7171.0, "2 h"), (360_000.0, "100 h"),
]  # fmt: skip


@pytest.mark.parametrize(("seconds", "expected"), TIMES)
def test_a_time_is_one_that_exists(seconds: float, expected: str) -> None:
    assert duration(seconds) == expected


def test_the_page_shows_each_in_the_same_way(browser: Browser, tmp_path: Path) -> None:
    browser.open(write(run_of(header(), [case()]), tmp_path))
    script = files("everyrank.reports.page").joinpath("js", "dom.js").read_text()
    drawn = browser.js(f"{script}\nreturn arguments[0].map(duration);", [seconds for seconds, _ in TIMES])
    assert drawn == [text for _, text in TIMES]


def test_no_time_has_sixty_of_a_unit() -> None:
    for tenths in range(0, 80_000, 7):
        assert not re.search(r"\b(60 s|60 min|1000 ms|\de[+-])", duration(tenths / 10)), tenths / 10


# --- a bare nought ---------------------------------------------------------------------------------------


def test_what_there_is_none_of_has_no_tile_and_leaves_no_nought(browser: Browser, tmp_path: Path) -> None:
    """Cases that had no world."""
    lines = [case(label=f"SGD-{n}", started=1_780_000_000.0 + n, seconds=1.0, size=0) for n in range(2)]
    browser.open(write(run_of(header(), lines), tmp_path), view="time")
    tiles = browser.find(".tiles")
    assert browser.js("return [...arguments[0].childNodes].map((element) => element.nodeName)", tiles) == ["LI"] * 3
    assert not any(text.split()[0] == "0" for text in browser.texts(".tile"))


# --- cut twice -------------------------------------------------------------------------------------------


def _left_out(text: str) -> int:
    (number,) = re.findall(r"([\d,]+) characters", text)
    return int(number.replace(",", ""))


def test_a_text_that_is_short_enough_is_left_as_it_is() -> None:
    assert cut_middle("a" * 20, 10) == "a" * 20


@pytest.mark.parametrize("note", [OWN_LINE, WITHIN])
def test_one_cut_counts_what_it_left_out(note: str) -> None:
    cut = cut_middle("a" * 1000 + "b" * 500, 200, note)
    assert cut == "a" * 200 + note.format("1,100 characters") + "b" * 200


def test_a_second_cut_counts_what_the_first_left_out_and_not_its_note() -> None:
    text = "".join(f"{number:x}" for number in range(100_000))
    once = truncate.truncate(text)
    twice = cut_middle(once, TEXT)
    assert _left_out(twice) == len(text) - 2 * TEXT
    assert _left_out(cut_middle(twice, 600, WITHIN)) == len(text) - 1200
    assert _left_out(cut_middle(cut_middle(twice, 600, WITHIN), 100, WITHIN)) == len(text) - 200


def test_bytes_that_a_rank_left_out_are_counted_as_bytes() -> None:
    text = f"{'a' * 500}\n... [everyrank left out 104857600 bytes here] ...\n{'b' * 500}"
    cut = cut_middle(text, 100)
    assert cut == "a" * 100 + OWN_LINE.format("800 characters and 104,857,600 bytes") + "b" * 100
    assert "[940 characters" not in cut
    assert cut_middle(cut, 50, WITHIN) == "a" * 50 + WITHIN.format("900 characters and 104,857,600 bytes") + "b" * 50


@pytest.mark.parametrize("length", range(80, 131, 5))
def test_a_note_is_never_cut_in_half(length: int) -> None:
    note = OWN_LINE.format("7,000 characters")
    text = "X" * length + note + "Y" * (400 - length)
    for cut in (cut_middle(text, 100, WITHIN), cut_middle(text[::-1].replace(note[::-1], note), 100, WITHIN)):
        notes = re.findall(r"\[[^\]]*\]", cut)
        assert cut.count("[") == cut.count("]") == len(notes)
        assert sum(_left_out(left_out) for left_out in notes) + cut.count("X") + cut.count("Y") == 7400


def test_a_message_that_a_run_file_shortened_is_whole_on_the_page(tmp_path: Path) -> None:
    message = "m" * 300 + " ..."  # as the run file keeps it: how much is missing is not known any more
    run = read(run_of(header(), [case(outcome="fail", message=message)]).write(tmp_path / "run.jsonl"))
    assert message in page_data([run])["tables"]["message"]
    longer = read(run_of(header(), [case(outcome="fail", message="m" * 999)]).write(tmp_path / "run.jsonl"))
    assert "m" * MESSAGE + " …" in page_data([longer])["tables"]["message"]
