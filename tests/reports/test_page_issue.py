"""The page in a real browser: a failure as Markdown for an issue, a case over the nights, many ranks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from everyrank.model.outcome import ENDINGS, Ending
from everyrank.model.result import BlamePart
from everyrank.reports.history import history
from everyrank.reports.history.history import LETTERS
from everyrank.reports.page.build import page
from everyrank.reports.runfile.model import CaseLine, OutputPart, RankPart
from everyrank.reports.runfile.read import read

from tests.chromium import Browser
from tests.made_up_runs import case, header, run_of
from tests.pages import write

TICKS = "a fence:\n```\nwithin\n````\nand `one`"
COPY = ".acts .copy"


def failure(**changes: Any) -> CaseLine:
    known: dict[str, Any] = {
        "outcome": "fail", "message": "not `close`!\n@everybody", "text": TICKS, "rule": "failed",
        "repeat": "pytest 'test_mine.py::test_optimizer'",
        "output": [OutputPart("Captured stdout call, rank 1", TICKS)],
    }  # fmt: skip
    return case(**{**known, **changes})


def copied(browser: Browser) -> str:
    """What is in the clipboard, pasted."""
    browser.js("""
        const area = document.createElement("textarea");
        area.id = "pasted";
        document.body.append(area);
    """)
    browser.find("#pasted").send_keys("\ue009v")  # Ctrl+V
    return str(browser.wait(lambda: browser.find("#pasted").get_attribute("value")))


def opened(browser: Browser, folder: Path, line: CaseLine, **facts: Any) -> None:
    browser.open(write(run_of(header(**facts), [line]), folder), case=line.id)
    browser.case_opened()


MARKDOWN = """
### `test_mine.py::test_optimizer[rpc-optimizer/parity.one-step[SGD-ws2]]`: fail

```
not `close`!
@everybody
```

- subject: `mine.Optimizer`
- optimizer: `SGD`
- world: `2 ranks, launcher fork, gloo, CPU`
- versions: `everyrank 0.1.0, torch 2.13.0+cpu, Python 3.11.9, Linux x86_64`
- commit: `main at 1111111111111111111111111111111111111111 with changes`
- CI run: `https://ci.example.org/7`
- decided by the rule `failed`

To repeat:

```
pytest 'test_mine.py::test_optimizer'
```

Failure:

`````
a fence:
```
within
````
and `one`
`````

<details><summary>Captured output</summary>

`Captured stdout call, rank 1`

`````
a fence:
```
within
````
and `one`
`````

</details>
"""


def test_one_button_copies_the_failure_as_markdown(browser: Browser, tmp_path: Path) -> None:
    opened(
        browser, tmp_path, failure(), commit="1" * 40, branch="main", dirty=True, ci_link="https://ci.example.org/7"
    )  # fmt: skip
    browser.click(COPY)
    browser.wait(lambda: browser.text(COPY) == "copied")
    text = copied(browser)
    assert "\n".join(line.rstrip() for line in text.splitlines()) == MARKDOWN.strip("\n")


def test_what_is_copied_is_bounded_and_keeps_start_and_end(browser: Browser, tmp_path: Path) -> None:
    noise = "".join(f"{number:x}" for number in range(30_000))
    outputs = [OutputPart(f"Captured stdout call, rank {rank}", f"<{rank}{noise}") for rank in range(16)]
    opened(browser, tmp_path, failure(text=f"first\n{noise}\nlast", output=outputs))
    browser.click(COPY)
    browser.wait(lambda: browser.text(COPY) == "copied")
    text = copied(browser)
    assert len(text) < 40_000
    assert "\nfirst\n" in text
    assert "\nlast\n```" in text
    assert "characters left out" in text


def test_where_a_page_from_the_disk_has_no_clipboard_the_text_is_copied_by_selecting_it(
    browser: Browser, tmp_path: Path
) -> None:
    opened(browser, tmp_path, failure())
    browser.js("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    browser.click(COPY)
    browser.wait(lambda: browser.text(COPY) == "copied")
    assert browser.js("return document.activeElement.textContent") == "copied"
    assert copied(browser).startswith("### `test_mine.py::")


def test_where_nothing_may_be_copied_the_text_is_there_to_be_taken(browser: Browser, tmp_path: Path) -> None:
    opened(browser, tmp_path, failure())
    browser.js("""
        const refuse = () => Promise.reject(new Error("no"));
        Object.defineProperty(navigator, "clipboard", { value: { writeText: refuse } });
        document.execCommand = () => false;
    """)
    browser.click(COPY)
    area = browser.find(".by-hand textarea")
    assert area.get_attribute("value").startswith("### `test_mine.py::")
    assert browser.js("const a = document.activeElement; return a.selectionEnd - a.selectionStart > 100")
    browser.click(COPY)
    assert len(browser.all(".by-hand")) == 1
    assert browser.complaints() == []


def test_what_passed_has_nothing_to_be_copied(browser: Browser, tmp_path: Path) -> None:
    opened(browser, tmp_path, case())
    assert browser.all(".copy") == []


# --- over the nights ------------------------------------------------------------------------------------------


@pytest.fixture
def nights(tmp_path: Path) -> Path:
    """Six nights of two cases: one breaks in the fifth, one is red in the second; the third was not its night."""
    folder = tmp_path / "nights"
    folder.mkdir()
    letters: dict[str, Ending] = {".": "pass", "F": "fail", "C": "crash"}
    plan = {"SGD": "....FC", "Adam": ".F ..."}
    for number in range(6):
        cases = [case(label=label, outcome=letters[row[number]]) for label, row in plan.items() if row[number] != " "]
        facts = {"commit": str(number) * 40, "branch": "main", "ci_link": f"https://ci.example.org/{number}"}
        run = run_of(header(started=1_780_000_000.0 + 86_400 * number, **facts), cases)
        run.write(folder / f"night-{number}.jsonl")
    return folder


def with_history(folder: Path) -> Path:
    target = folder.parent / "report.html"
    found = history.of_folder(folder, case_nights=6)
    target.write_text(page([read(folder / "night-5.jsonl")], "", found))
    return target


def test_a_case_shows_itself_over_the_nights_and_where_it_turned(browser: Browser, nights: Path) -> None:
    target = with_history(nights)
    browser.open(target, case=case(label="SGD").id)
    browser.case_opened()
    shapes = "return [...document.querySelectorAll('.case-nights .glyph')].map((element) => element.dataset.outcome)"
    assert browser.js(shapes) == ["pass"] * 4 + ["fail", "crash"]
    text = browser.text(".case-nights + p")
    assert text == (
        "Red since 2026-06-01, main at 4444444444; green last on 2026-05-31, main at 3333333333. "
        "Red in 2 of 6 nights. CI run"
    )
    assert browser.find(".case-nights + p a").get_attribute("href") == "https://ci.example.org/4"
    browser.open(target, case=case(label="Adam").id)
    browser.case_opened()
    titles = [element.get_attribute("title") for element in browser.all(".case-nights li")]
    assert titles[2] == "2026-05-30 20:26 UTC, main at 2222222222, not tried"
    assert "Green since 2026-05-31, main at 3333333333; red last on 2026-05-29" in browser.text(".case-nights + p")


def test_of_a_long_history_each_case_keeps_the_latest_nights(nights: Path) -> None:
    found = history.of_folder(nights, case_nights=3)
    ends = {key[3]: letters for key, letters in found.cases.items()}
    good, bad, crash = (LETTERS[ENDINGS.index(ending)] for ending in ("pass", "fail", "crash"))  # type: ignore[arg-type]
    assert ends == {case(label="SGD").case: good + bad + crash, case(label="Adam").case: 3 * good}
    assert history.of_folder(nights).cases == {}


def test_without_a_history_a_case_has_no_nights(browser: Browser, tmp_path: Path) -> None:
    opened(browser, tmp_path, failure())
    assert "Over the nights" not in browser.text("#drawer")


# --- many ranks ------------------------------------------------------------------------------------------


def test_ranks_that_ended_alike_are_shown_together(browser: Browser, tmp_path: Path) -> None:
    ranks = [RankPart(rank, "cut", "call", "waiting in all_reduce", "", rank / 64) for rank in range(64)]
    ranks[63] = RankPart(63, "failed", "call", "ValueError: no", "train.py:4", 0.5)
    ranks[7] = RankPart(7, "lost", "call", "was killed by SIGKILL")
    opened(browser, tmp_path, failure(ranks=ranks, size=64))
    assert browser.texts(".rank .name b") == ["rank 63", "rank 7", "ranks 0-6,8-62"]
    assert "0 s to 0.97 s" in browser.texts(".rank .small")[2]
    each = [RankPart(rank, "failed", "call", f"no {rank}") for rank in range(64)]
    opened(browser, tmp_path, failure(ranks=each, size=64))
    assert len(browser.all(".rank")) == 16
    browser.js("document.querySelector('.ranks + .more').click()")
    assert len(browser.all(".rank")) == 64


def test_the_output_of_the_rank_that_failed_is_open_first(browser: Browser, tmp_path: Path) -> None:
    outputs = [OutputPart(f"Captured stdout call, rank {rank}", f"from {rank}", [rank]) for rank in (5, 0, 1, 2)]
    ranks = [RankPart(rank, "failed" if rank == 5 else "cut") for rank in range(6)]
    opened(browser, tmp_path, failure(ranks=ranks, size=6, output=outputs, blame=BlamePart([5], "failed first")))
    assert re.findall(r"from \d", browser.text("#drawer")) == ["from 5"]
