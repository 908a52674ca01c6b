"""The nights on the page: what is shown of a history, and how it is drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from everyrank import cli
from everyrank.model.outcome import Ending
from everyrank.reports.history import history
from everyrank.reports.page.build import page
from everyrank.reports.page.nights import NIGHTS, nights_data
from everyrank.reports.page.outcomes import SHOWN
from everyrank.reports.runfile.model import ErrorPart
from everyrank.reports.runfile.read import read

from tests.chromium import Browser
from tests.made_up_runs import case, header, run_of

DAY = 86_400
LETTERS: dict[str, Ending] = {".": "pass", "F": "fail"}


def night(folder: Path, number: int, outcomes: dict[str, Ending], **changes: Any) -> Path:
    """A night in which each law ended in one way; an error and a time that grow with the nights."""
    error = ErrorPart(1.0, 1e-12 * 2**number, 1e-12 * 2**number, 1, "weight", 0)
    cases = [case(law=law, outcome=outcome, error=error, seconds=0.1) for law, outcome in outcomes.items()]
    started = 1_780_000_000.0 + DAY * number
    return run_of(header(started=started, **changes), cases).write(folder / f"night-{number:03}.jsonl")


@pytest.fixture
def nights(tmp_path: Path) -> Path:
    """Five nights: one law breaks in the fourth, one flips, one is still; a new torch comes in the third."""
    plan = {"breaks": "...FF", "flips": ".F.F.", "still": "....."}
    folder = tmp_path / "nights"
    folder.mkdir()
    for number in range(5):
        torch = "2.13.0" if number < 2 else "2.14.0"
        night(folder, number, {law: LETTERS[row[number]] for law, row in plan.items()}, torch=torch)
    return folder


def test_each_law_is_shown_night_by_night(nights: Path) -> None:
    data = nights_data(history.of_folder(nights))
    assert [night["file"] for night in data["nights"]] == [f"night-{number:03}.jsonl" for number in range(5)]
    laws = {law["law"]: law for law in data["laws"]}
    worst = {name: [SHOWN[point[0]] for point in law["points"]] for name, law in laws.items()}
    assert worst["breaks"] == ["pass"] * 3 + ["fail"] * 2
    assert (laws["breaks"]["red"], laws["breaks"]["since"], laws["breaks"]["first_bad"]) == (True, 3, 3)
    assert (laws["flips"]["red"], laws["flips"]["since"], laws["flips"]["flips"]) == (False, None, 4)
    assert laws["still"]["less_exact"]
    assert laws["still"]["drift"] == pytest.approx(16e-12 / 3e-12, rel=0.01)


def test_of_very_many_nights_the_latest_are_drawn_and_the_rest_is_counted(tmp_path: Path) -> None:
    for number in range(NIGHTS + 7):
        night(tmp_path, number, {"clip": "fail" if number < 5 else "pass"})
    data = nights_data(history.of_folder(tmp_path))
    assert len(data["nights"]) == NIGHTS
    assert data["earlier"] == 7
    assert data["nights"][0]["file"] == "night-007.jsonl"
    assert data["laws"][0]["first_bad"] == -1  # before those that are drawn


def test_a_law_that_several_subjects_break_in_the_same_nights_shares_a_row(tmp_path: Path) -> None:
    rows = {"a": ".FF", "b": ".FF", "c": "..F", "d": "...", "e": "..."}
    for number in range(3):
        cases = [case("clip", subject=name, outcome=LETTERS[row[number]]) for name, row in rows.items()]
        run_of(header(started=1_780_000_000.0 + DAY * number), cases).write(tmp_path / f"{number}.jsonl")
    alike = [law["alike"] for law in nights_data(history.of_folder(tmp_path))["laws"]]
    assert alike == [0, 0, 1, 2, 3]


def test_a_folder_without_a_run_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = night(tmp_path, 1, {"clip": "pass"})
    empty = tmp_path / "empty"
    empty.mkdir()
    target = tmp_path / "report.html"
    assert cli.main(["page", str(file), "--history", str(empty), "-o", str(target)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not target.exists()


def test_two_nights_of_one_subject_are_pointed_to_the_history(
    nights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = sorted(nights.glob("*.jsonl"))[:2]
    assert cli.main(["page", str(first), str(second), "-o", str(nights / "report.html")]) == 2
    assert "--history" in capsys.readouterr().err


# --- in a browser -------------------------------------------------------------------------------------------


def test_laws_that_moved_come_first_what_is_red_before_what_flips(browser: Browser, nights: Path) -> None:
    target = nights.parent / "report.html"
    tonight = nights / "night-004.jsonl"
    assert cli.main(["page", str(tonight), "--history", str(nights), "-o", str(target)]) == 0
    browser.open(target)
    browser.keys("5")
    assert browser.state() == {"view": "history"}
    assert browser.texts(".over .law") == ["breaks", "flips", "still"]
    rows = browser.js("""
        return [...document.querySelectorAll(".over tbody tr")].map((row) => ({
          shapes: [...row.querySelectorAll("td:not(.figures) .glyph")].map((element) => element.dataset.outcome),
          figures: [...row.querySelectorAll(".figures")].map((element) => element.textContent),
        }))
    """)
    assert rows[0]["shapes"] == ["pass", "pass", "pass", "fail", "fail"]
    assert rows[0]["figures"][:3] == ["2026-05-31", "2026-05-31", "1"]
    assert rows[1]["figures"][:3] == ["", "2026-05-29", "4"]
    assert rows[2]["figures"][:3] == ["", "", ""]
    assert rows[2]["figures"][5] == "\N{MULTIPLICATION SIGN}5.3"
    labels = [element.get_attribute("aria-label") for element in browser.all(".nights li")]
    assert "new: torch 2.13.0 → 2.14.0" in labels[2]
    assert "2 red of 3 cases" in labels[3]
    browser.find("#filter-q").send_keys("flip")
    browser.wait(lambda: browser.texts(".over .law") == ["flips"])
    browser.click(".over .law")
    assert browser.state()["law"] == "rpc-optimizer/flips"
    assert browser.state()["view"] == "cases"
    assert browser.complaints() == []


def test_subjects_that_broke_a_law_alike_share_a_row_which_leads_to_all_of_them(
    browser: Browser, tmp_path: Path
) -> None:
    folder = tmp_path / "nights"
    folder.mkdir()
    for number in range(3):
        cases = [case("clip", subject=f"mine.T{n}", outcome="fail" if number else "pass") for n in range(5)]
        file = run_of(header(started=1_780_000_000.0 + DAY * number), cases).write(folder / f"{number}.jsonl")
    target = tmp_path / "report.html"
    target.write_text(page([read(file)], "", history.of_folder(folder, case_nights=NIGHTS)))
    browser.open(target, view="history")
    assert browser.texts(".over .owner") == ["5 subjects: mine.T0, mine.T1, mine.T2 and 2 more"]
    assert len(browser.all(".over td[title*='5 red of 5 cases']")) == 2
    browser.click(".over .law")
    assert browser.state() == {"law": "rpc-optimizer/clip", "view": "cases"}
    assert len(browser.all(".row")) == 5


@pytest.mark.parametrize(("nights", "dates"), [(3, ["05-28", "05-29", "05-30"]), (18, ["06-07", "06-14"])])
def test_dates_stand_under_the_bars_of_nights(
    browser: Browser, tmp_path: Path, nights: int, dates: list[str]
) -> None:
    folder = tmp_path / "nights"
    folder.mkdir()
    for number in range(nights):
        file = night(folder, number, {"clip": "pass"})
    target = tmp_path / "report.html"
    target.write_text(page([read(file)], "", history.of_folder(folder)))
    browser.open(target, view="history")
    assert browser.texts(".nights .date") == dates


def test_laws_that_never_changed_are_folded_and_files_left_out_are_named(browser: Browser, tmp_path: Path) -> None:
    folder = tmp_path / "nights"
    folder.mkdir()
    for number in range(3):
        run_of(header(started=1_780_000_000.0 + DAY * number), [case()]).write(folder / f"{number}.jsonl")
    (folder / "broken.jsonl").write_text("<script>window.broken = 1</script>")
    run = read(folder / "2.jsonl")
    target = tmp_path / "report.html"
    target.write_text(page([run], "", history.of_folder(folder)))
    browser.open(target, view="history")
    assert "None: each law came out each night as it did before." in browser.text("#main")
    assert browser.all(".over") == []
    browser.click(".still summary")
    browser.wait(lambda: browser.texts(".over .law") == ["parity.one-step"])
    assert "1 file left out" in browser.text("#main")
    assert "broken.jsonl" in browser.texts("details.small li")[0]
    assert browser.js("return window.broken") is None


def test_without_a_history_there_is_no_such_view_and_its_address_shows_the_reason(
    browser: Browser, tmp_path: Path
) -> None:
    target = tmp_path / "report.html"
    target.write_text(page([read(night(tmp_path, 0, {"clip": "pass"}))]))
    browser.open(target)
    assert not browser.find("#view-history").is_displayed()
    browser.open(target, view="history")
    assert "made without a history" in browser.text("#main")
