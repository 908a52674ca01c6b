"""``everyrank kill-matrix --ledger``: which rogues stay green if they are judged under a subject's ledger."""

from __future__ import annotations

from pathlib import Path

import pytest
from everyrank.fixtures.rogues import Rogue
from everyrank.suites.command import kill_matrix
from everyrank.suites.engine.ledger import read
from everyrank.suites.errors import LedgerError
from everyrank.suites.kill import blind_spots
from everyrank.suites.kill.blind_spots import BlindSpots, contract_of, tried_under

#: Two core cases of the contract rpc-optimizer.
KEPT, EMPTY = "state.kept[ws2]", "context.empty[ws2]"
ENTRY = '[[known]]\ncase = "{}"\nkind = "fail"\nissue = "unreported"\n'
ROGUES = (
    Rogue("forgets", print, ("state.kept",), ""),
    Rogue("steps-unused", print, ("context.empty", "state.kept"), ""),
    Rogue("other", print, ("errors.several",), ""),
)


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blind_spots, "rogues", lambda name: ROGUES)


def _ledger(folder: Path, *cases: str, blind: str = "") -> Path:
    file = folder / "mine.toml"
    file.write_text("".join(map(ENTRY.format, cases)) + blind)
    return file


def _spots(path: Path, **ends: str) -> BlindSpots:
    cells = {}
    for case in tried_under("rpc-optimizer", path):
        name = f"{case.subject.name}_{case.law.id}".replace("-", "_").replace(".", "_")
        if end := ends.get(name, "known"):
            cells[case.subject.name, case.id] = end
    return BlindSpots("rpc-optimizer", path, cells)


def test_rogues_are_tried_on_laws_that_they_break_and_that_have_a_case_in_the_ledger(tmp_path: Path) -> None:
    tried = tried_under("rpc-optimizer", _ledger(tmp_path, KEPT))
    assert [(case.subject.name, case.short_id) for case in tried] == [("forgets", KEPT), ("steps-unused", KEPT)]
    assert all(case.entry is not None for case in tried)


def test_a_rogue_is_a_blind_spot_if_every_case_that_could_kill_it_is_known(tmp_path: Path) -> None:
    spots = _spots(_ledger(tmp_path, KEPT), steps_unused_state_kept="known")
    assert spots.faults == [f"forgets stays green: state.kept is hidden by '{KEPT}'"]
    assert "2 of 3 rogues break laws of which the ledger knows cases; 1 stays green" in spots.text()
    assert "  blind: forgets (no reason is given)\n" in spots.text()
    assert spots.text().endswith(f"  killed by another law: steps-unused: state.kept is hidden by '{KEPT}'")


def test_a_rogue_is_blind_only_if_all_laws_that_it_breaks_are_hidden(tmp_path: Path) -> None:
    ledger = _ledger(tmp_path, KEPT, EMPTY)
    assert set(_spots(ledger).spots) == {"forgets", "steps-unused"}
    assert set(_spots(ledger, steps_unused_context_empty="fail").spots) == {"forgets"}


def test_a_rogue_that_deviates_otherwise_is_killed(tmp_path: Path) -> None:
    assert _spots(_ledger(tmp_path, KEPT), forgets_state_kept="fail").faults == []


def test_a_rogue_that_passes_a_known_case_is_no_fault_of_the_ledger(tmp_path: Path) -> None:
    assert _spots(_ledger(tmp_path, KEPT), forgets_state_kept="stale").faults == []


def test_a_blind_spot_that_is_listed_with_a_reason_is_no_fault(tmp_path: Path) -> None:
    spots = _spots(_ledger(tmp_path, KEPT, blind='[blind]\nforgets = "just this is known"\n'))
    assert spots.faults == []
    assert "  blind: forgets (just this is known)\n" in spots.text()


def test_a_list_of_blind_spots_is_checked_in_both_directions(tmp_path: Path) -> None:
    path = _ledger(tmp_path, KEPT, blind='[blind]\nforgets = "known"\nforget = "a typo"\n')
    assert _spots(path, forgets_state_kept="fail").faults == [
        "the ledger lists forgets as a blind spot, but it is killed: remove it from the list",
        "the ledger lists forget as a blind spot, but there is no such rogue",
    ]


@pytest.mark.parametrize(
    ("end", "fault"),
    [("", "forgets was not tried on state.kept"), ("crash", "forgets ends state.kept by crash, which is no kill")],
)
def test_a_missing_outcome_and_a_crash_are_no_kill(tmp_path: Path, end: str, fault: str) -> None:
    assert _spots(_ledger(tmp_path, KEPT), forgets_state_kept=end).faults == [fault]


def test_a_ledgers_contract_is_found_by_the_cases_of_its_entries(tmp_path: Path) -> None:
    assert contract_of(_ledger(tmp_path, KEPT)) == "rpc-optimizer"
    with pytest.raises(
        LedgerError, match=r"mine.toml fits .*replicate and .*: name its subject's contract with --contract"
    ):
        contract_of(_ledger(tmp_path))
    with pytest.raises(LedgerError, match="has entries that match no case of any contract"):
        contract_of(_ledger(tmp_path, "no.law[ws2]"))


def test_a_reason_is_a_text(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match=r"\[blind\] names rogues, each with the reason why it stays green"):
        read(_ledger(tmp_path, blind="[blind]\nforgets = true\n"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--contract=replicate"], "the entry 'state.kept[ws2]' matches no case: correct or remove it"),
        (
            ["--contract=replicate", "--contract=rpc-optimizer"],
            "--ledger belongs to one subject: give one --contract",
        ),
    ],
)
def test_a_ledger_that_does_not_fit_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        kill_matrix([f"--ledger={_ledger(tmp_path, KEPT)}", *arguments])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_a_missing_ledger_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        kill_matrix([f"--ledger={tmp_path / 'none.toml'}"])
    assert "none.toml: a subject without known deviations names none" in capsys.readouterr().err
