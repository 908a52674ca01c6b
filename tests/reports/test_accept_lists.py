"""``everyrank accept`` and entries that list several cases, or that stand in a ledger that another includes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from everyrank.cli import main
from everyrank.reports.runfile.model import CaseLine, DeviationPart, LedgerPart, LeftOutPart

from tests.made_up_runs import case, header, run_of

BASE = """\
[[known]]
case = ["clip[SGD-ws2]", "mean[SGD-*]"]
kind = "fail"
match = "off by"
issue = "unreported"
"""

MINE = """\
subject = "mine.Optimizer"

[[include]]
ledger = "base.toml" # which has the same cause

# why: see above
[[known]]
case = [
    "tied[Adam-ws2]", "tied[SGD-ws2]",
    "equal[*]",
]
kind = "fail"
match = "off by"
issue = "https://example.org/1" # reported in May
note = "a tied parameter steps twice"
"""

_WITHOUT = 'ledger = "base.toml" # which has the same cause\nwithout = ["clip[SGD-ws2]"]\n'
_LIST = MINE[MINE.index("case = [") : MINE.index("kind =")]
_KNOWN = LedgerPart("fail", "unreported", "")


def _fails(law: str, label: str, text: str = "step 2: lost", **more: Any) -> CaseLine:
    return case(law, label, "fail", deviations=[DeviationPart(text, [0])], message=f"{label}: {text}", **more)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base.toml").write_text(BASE)
    (tmp_path / "mine.toml").write_text(MINE)
    return tmp_path


def _accept(folder: Path, *cases: CaseLine, code: int = 0, **more: Any) -> str:
    """Accept a run of these cases, and return the ledger's new text."""
    run_of(header(subjects={"mine.Optimizer": "mine.toml"}, **more), list(cases)).write(folder / "run.jsonl")
    assert main(["accept", "run.jsonl"]) == code
    assert (folder / "base.toml").read_text() == BASE
    return (folder / "mine.toml").read_text()


def test_new_deviations_that_state_the_same_become_one_entry(folder: Path) -> None:
    added = [_fails("late", "Muon"), _fails("late", "SGD"), _fails("order", "SGD"), _fails("order", "Muon", "gone")]
    assert _accept(folder, *added) == MINE + (
        '\n[[known]]\ncase = ["late[Muon-ws2]", "late[SGD-ws2]", "order[SGD-ws2]"]\nkind = "fail"\n'
        'match = "step *: lost"\nissue = "unreported"\nnote = "Muon: step 2: lost"\n'
        '\n[[known]]\ncase = "order[Muon-ws2]"\nkind = "fail"\n'
        'match = "gone"\nissue = "unreported"\nnote = "Muon: gone"\n'
    )


def test_new_deviations_of_which_nothing_can_be_stated_have_an_entry_each(folder: Path) -> None:
    text = _accept(folder, case("late", "Muon", "fail"), case("late", "SGD", "fail"))
    assert 'case = "late[Muon-ws2]"\n' in text
    assert 'case = "late[SGD-ws2]"\n' in text


def test_a_list_that_is_long_has_each_law_on_a_line(folder: Path) -> None:
    laws = ("parity.train", "state.round-trip", "parity.groups")
    text = _accept(folder, *(_fails(law, label) for label in ("Adafactor", "Muon") for law in laws))
    assert (
        'case = [\n    "parity.train[Adafactor-ws2]", "parity.train[Muon-ws2]",\n'
        '    "state.round-trip[Adafactor-ws2]", "state.round-trip[Muon-ws2]",\n'
        '    "parity.groups[Adafactor-ws2]", "parity.groups[Muon-ws2]",\n]\n'
    ) in text


def test_a_stale_case_goes_from_its_list_and_the_others_stay(folder: Path) -> None:
    text = _accept(folder, case("tied", "Adam", "stale"), case("equal", "SGD", "known"))
    assert text == MINE.replace(_LIST, 'case = ["tied[SGD-ws2]", "equal[*]"]\n')


def test_an_entry_goes_with_the_last_case_of_its_list(folder: Path) -> None:
    text = _accept(folder, *(case(law, label, "stale") for law in ("tied", "equal") for label in ("Adam", "SGD")))
    assert text == MINE[: MINE.index("[[known]]")].rstrip() + "\n"


def test_a_case_of_a_list_that_deviates_otherwise_gets_an_entry_of_its_own(folder: Path) -> None:
    assert _accept(folder, _fails("tied", "Adam", ledger=_KNOWN)) == (
        MINE.replace(_LIST, 'case = ["tied[SGD-ws2]", "equal[*]"]\n')
        + '\n[[known]]\ncase = "tied[Adam-ws2]"\nkind = "fail"\nmatch = "step *: lost"\n'
        'issue = "https://example.org/1"\nnote = "a tied parameter steps twice"\n'
    )


def test_a_stale_case_of_an_included_ledger_is_taken_away(folder: Path) -> None:
    text = _accept(folder, case("clip", "SGD", "stale"))
    assert text == MINE.replace('ledger = "base.toml" # which has the same cause\n', _WITHOUT)
    assert _accept(folder, case("clip", "SGD", "pass")) == text


def test_what_is_taken_away_joins_what_was_before(folder: Path) -> None:
    _accept(folder, case("clip", "SGD", "stale"))
    text = _accept(folder, case("mean", "SGD", "stale"))
    assert 'without = ["clip[SGD-ws2]", "mean[SGD-*]"]\n' in text


def test_a_case_that_deviates_otherwise_than_an_included_entry_states_gets_an_entry_here(folder: Path) -> None:
    text = _accept(folder, _fails("clip", "SGD", ledger=_KNOWN))
    assert text == MINE.replace('ledger = "base.toml" # which has the same cause\n', _WITHOUT) + (
        '\n[[known]]\ncase = "clip[SGD-ws2]"\nkind = "fail"\nmatch = "step *: lost"\nissue = "unreported"\n'
    )


def test_a_pattern_stays_if_a_profile_left_cases_out(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    left_out = [LeftOutPart("--profile=default", "that --profile=full runs", 3)]
    assert _accept(folder, case("mean", "SGD", "stale"), code=1, left_out=left_out) == MINE
    assert "the entry 'mean[SGD-*]' matches more cases than this run chose: run them all" in capsys.readouterr().out


def test_a_comment_inside_of_a_list_is_not_lost(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = MINE.replace('    "equal[*]",\n', '    "equal[*]", # on all ranks\n')
    (folder / "mine.toml").write_text(mine)
    assert _accept(folder, case("tied", "Adam", "stale"), code=2) == mine
    assert "mine.toml: a comment inside of the list `case`: put it above the table" in capsys.readouterr().err


def test_a_ledger_whose_include_is_wrong_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "mine.toml").write_text(MINE.replace("base.toml", "gone.toml"))
    _accept(folder, case("tied", "Adam", "stale"), code=2)
    assert (
        "mine.toml includes gone.toml, which is not there: name a ledger beside this one" in capsys.readouterr().err
    )
