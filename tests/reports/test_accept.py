"""``everyrank accept``: what goes into a ledger, what comes out, and what never does."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import expecttest
import pytest
from everyrank.cli import main
from everyrank.model.outcome import Ending
from everyrank.reports.ledger.entry import FileEntry
from everyrank.reports.ledger.ledger_file import read_ledger
from everyrank.reports.runfile.model import CaseLine, DeviationPart, Footer, LedgerPart, LeftOutPart
from everyrank.suites.engine.ledger import Entry
from everyrank.suites.engine.ledger import read as read_as_the_kit_does

from tests.made_up_runs import case, header, run_of
from tests.reports.conftest import Accept

LEDGER = """\
# Known deviations of mine.Optimizer.
subject = "mine.Optimizer"

# --- about None ---

[[known]]
case = "none.position[Adam-ws2]"
kind = "fail"
issue = "https://example.org/1" # reported in May
note = "the neighbours' gradient"

# why SGD too: see above
[[known]]
case = "none.position[SGD-*]"
kind = "fail"
issue = "unreported"

# --- about clipping ---
[[known]]
case = "clip[*]"
kind = "fail"
issue = "unreported"
note = \"\"\"
two lines,
one with [[known]] in it\"\"\"

# the end
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(LEDGER)
    return tmp_path


def _cases(folder: Path) -> list[str]:
    return [entry.case for entry in read_as_the_kit_does(folder / "mine.toml").entries]


def test_an_entry_that_is_documented_keeps_its_link(tmp_path: Path) -> None:
    text = '[[known]]\ncase = "a[b]"\nkind = "documented"\nlink = "https://example.org"\n'
    (tmp_path / "mine.toml").write_text(text)
    ledger = read_ledger(tmp_path / "mine.toml")
    assert ledger.entries[0].link == "https://example.org"
    assert ledger.changed([], [FileEntry("a[c]", "fail")]).startswith(text)


def test_a_new_deviation_goes_beside_those_of_its_law_and_is_unreported(folder: Path, accept: Accept) -> None:
    failed = case("none.position", "Muon", "fail", message='step 3: "w" is off\nby 4 ULPs')
    code, printed = accept([failed, case("tied", "SGD", "fail")])
    assert (code, printed) == (
        0, "mine.toml\n  + none.position[Muon-ws2]\n  + tied[SGD-ws2]\n2 deviations added as unreported\n",
    )  # fmt: skip
    assert _cases(folder) == [
        "none.position[Adam-ws2]", "none.position[SGD-*]", "none.position[Muon-ws2]", "clip[*]", "tied[SGD-ws2]",
    ]  # fmt: skip
    added = read_as_the_kit_does(folder / "mine.toml").entries[2]
    assert (added.kind, added.issue) == ("fail", "unreported")
    assert added.note == 'step 3: "w" is off by 4 ULPs'


def test_every_line_that_a_person_wrote_is_kept_and_to_accept_twice_is_to_accept_once(
    folder: Path, accept: Accept
) -> None:
    cases = [case("none.position", "Muon", "fail"), case("tied", "SGD", "fail")]
    accept(cases)
    once = (folder / "mine.toml").read_text()
    kept = iter(once.splitlines())
    assert all(line in kept for line in LEDGER.splitlines())
    assert accept([*cases, case("none.position", "Adam", "known")]) == (0, "nothing to accept\n")
    assert (folder / "mine.toml").read_text() == once


def test_a_stale_entry_goes_and_the_comments_around_it_stay(folder: Path, accept: Accept) -> None:
    code, printed = accept([case("none.position", "Adam", "stale")])
    assert (code, printed) == (0, "mine.toml\n  - none.position[Adam-ws2]\n1 stale entry removed\n")
    assert (folder / "mine.toml").read_text() == LEDGER.replace(
        LEDGER[LEDGER.index("[[known]]") : LEDGER.index("# why")], ""
    )


def test_a_stale_pattern_goes_if_all_its_cases_pass(folder: Path, accept: Accept) -> None:
    cases = [case("clip", "SGD", "stale"), case("clip", "LBFGS", "not-applicable"), case("tied", "SGD")]
    assert accept(cases)[0] == 0
    assert _cases(folder) == ["none.position[Adam-ws2]", "none.position[SGD-*]"]
    assert (folder / "mine.toml").read_text().endswith("# --- about clipping ---\n\n# the end\n")


@pytest.mark.parametrize("other", ["known", "fail", "crash", "timeout", "error", "interrupted", "not-run", "skipped"])
def test_a_stale_pattern_stays_while_one_of_its_cases_does_not_pass(
    folder: Path, accept: Accept, other: Ending
) -> None:
    code, printed = accept([case("clip", "SGD", "stale"), case("clip", "Adam", "stale"), case("clip", "Muon", other)])
    assert code == 1
    assert "the entry 'clip[*]' also matches 1 of 3 cases that do not pass: narrow it" in printed
    assert (folder / "mine.toml").read_text() == LEDGER


@pytest.mark.parametrize(
    "command",
    [
        ["pytest", "--law=clip"], ["pytest", "suites/", "--law", "clip"], ["pytest", "-k", "SGD"],
        ["pytest", "-kSGD"], ["pytest", "--lf"], ["pytest", "test_mine.py::test_it"],
        ["/bin/python", "-m", "pytest", "-m", "slow"],
    ],
)  # fmt: skip
def test_a_stale_pattern_stays_if_the_run_chose_its_cases(folder: Path, accept: Accept, command: list[str]) -> None:
    code, printed = accept([case("clip", "SGD", "stale"), case("none.position", "Adam", "stale")], command=command)
    assert code == 1
    assert "run them all" in printed
    assert _cases(folder) == ["none.position[SGD-*]", "clip[*]"]


def test_python_dash_m_pytest_does_not_choose_cases(accept: Accept) -> None:
    command = ["/bin/python", "-m", "pytest", "suites/", "-n", "2"]
    assert accept([case("clip", "SGD", "stale")], command=command)[0] == 0


@pytest.mark.parametrize(
    ("ended", "why"),
    [
        (case("tied", "SGD", "crash"), "a crash is never accepted"),
        (case("tied", "SGD", "timeout"), "a timeout is never accepted"),
        (case("tied", "SGD", "error"), "an error is never accepted"),
        (case("tied", "SGD", "not-run"), "it was not run"),
        (case("tied", "SGD", "interrupted"), "its run was interrupted"),
        (case("tied", "SGD", "fail", passes_alone=True), "it passes alone"),
        (case("tied", "SGD", "fail", lack="not done"), "correct the declaration"),
        (case("tied", "SGD", "stale", lack="not done"), "remove the declaration"),
        (case("tied", "SGD-*", "fail"), "its id would be read as a pattern"),
    ],
)
def test_a_case_that_is_never_accepted_is_named_and_the_exit_is_1(
    folder: Path, accept: Accept, ended: CaseLine, why: str
) -> None:
    code, printed = accept([ended])
    assert code == 1
    assert why in printed
    assert f"  mine.Optimizer {ended.case}\n" in printed
    assert printed.endswith("1 case not accepted\n")
    assert (folder / "mine.toml").read_text() == LEDGER


def test_an_entry_that_expects_another_end_is_for_a_person(folder: Path, accept: Accept) -> None:
    (folder / "mine.toml").write_text(LEDGER.replace('kind = "fail"', 'kind = "timeout"'))
    code, printed = accept([case("none.position", "SGD", "fail")])
    assert code == 1
    text = "the entry 'none.position[SGD-*]' expects 'timeout', but the outcome is 'fail': correct the entry"
    assert text in printed


def test_a_red_test_without_a_subject_is_named_and_not_accepted(folder: Path, accept: Accept) -> None:
    plain = CaseLine("test_a.py::test_b[ws2]", "fail")
    assert accept([plain, case()]) == (
        1,
        "not accepted: a test without a subject has no ledger: correct it, or mark it xfail\n"
        "  test_a.py::test_b[ws2]\n"
        "1 case not accepted\n",
    )
    assert accept([plain, case()], "--subject=mine.Optimizer") == (0, "nothing to accept\n")
    assert accept([CaseLine("test_a.py::test_b[ws2]", "pass"), case()]) == (0, "nothing to accept\n")


def test_a_stale_pattern_stays_if_its_other_cases_may_not_have_been_collected(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = run_of(header(subjects={"mine.Optimizer": "mine.toml"}), [case("clip", outcome="stale")])
    footer = Footer(counts={"stale": 1}, seconds=1.0, exit=1, troubles=["test_b.py could not be collected"])
    replace(made, footer=footer).write(folder / "run.jsonl")
    assert main(["accept", "run.jsonl"]) == 1
    assert "may match more cases than were collected: test_b.py could not be collected" in capsys.readouterr().out
    assert (folder / "mine.toml").read_text() == LEDGER


def test_a_run_that_was_killed_is_accepted_as_far_as_it_came(folder: Path, accept: Accept) -> None:
    cases = [case("tied", "SGD", "fail"), case("clip", "SGD", "stale"), case("clip", "Adam", "stale")]
    run_of(header(subjects={"mine.Optimizer": "mine.toml"}), cases).cut_after(2).write(folder / "killed.jsonl")
    assert main(["accept", "killed.jsonl"]) == 2
    assert main(["accept", "killed.jsonl", "--partial"]) == 1
    assert _cases(folder)[-2:] == ["clip[*]", "tied[SGD-ws2]"]


def test_the_file_of_an_entry_is_used_where_the_header_names_none(folder: Path, accept: Accept) -> None:
    spoken = LedgerPart("fail", "unreported", "", "mine.toml")
    code, printed = accept([case("tied", "SGD", "fail"), case("clip", outcome="known", ledger=spoken)], subjects={})
    assert code == 0, printed
    assert "tied[SGD-ws2]" in _cases(folder)


def test_a_subject_without_a_ledger_gets_one_at_the_named_path(folder: Path, accept: Accept) -> None:
    cases = [case("tied", "SGD", "fail"), case("tied", "SGD", "fail", subject="mine.Other")]
    subjects = {"mine.Optimizer": "mine.toml", "mine.Other": ""}
    code, printed = accept(cases, subjects=subjects)
    assert code == 1
    assert "its subject names no ledger: give its path with --ledger" in printed
    code, printed = accept(cases, "--ledger", "other.toml", subjects=subjects)
    assert code == 0, printed
    assert (folder / "other.toml").read_text() == (
        "# Known deviations of mine.Other, torch 2.13.0+cpu.\n"
        'subject = "mine.Other"\n\n[[known]]\ncase = "tied[SGD-ws2]"\nkind = "fail"\nissue = "unreported"\n'
    )


def test_only_the_subject_that_is_named_is_brought_up_to_date(folder: Path, accept: Accept) -> None:
    cases = [case("tied", "SGD", "fail"), case("tied", "SGD", "fail", subject="mine.Other")]
    (folder / "other.toml").write_text('subject = "mine.Other"\n')
    subjects = {"mine.Optimizer": "mine.toml", "mine.Other": "other.toml"}
    code, printed = accept(cases, "--subject=mine.Other", subjects=subjects)
    assert (code, printed.splitlines()[0]) == (0, "other.toml")
    assert (folder / "mine.toml").read_text() == LEDGER


_OLD = '[[known]]\ncase = "clip[SGD-ws2]"\nkind = "fail"\ntorch = "<2.14"\nissue = "unreported"\n'


def test_an_entry_for_versions_of_torch_is_restated_and_keeps_them(folder: Path, accept: Accept) -> None:
    (folder / "mine.toml").write_text(_OLD)
    seen = {"ledger": LedgerPart("fail", "unreported", ""), "deviations": [DeviationPart("another value", [0])]}
    accept([case("clip", "SGD", "fail", **seen)], torch="2.13.0+cpu")
    (entry,) = read_as_the_kit_does(folder / "mine.toml", "2.13.0").entries
    assert (entry.torch, entry.match) == ("<2.14", ("another value",))


def test_a_deviation_beside_an_entry_for_other_versions_is_one_of_this_version(folder: Path, accept: Accept) -> None:
    (folder / "mine.toml").write_text(_OLD)
    assert accept([case("clip", "SGD", "fail")], torch="2.14.1+cu130")[0] == 0
    assert (folder / "mine.toml").read_text().startswith(_OLD)
    assert [entry.torch for entry in read_ledger(folder / "mine.toml").entries] == ["<2.14", "==2.14.*"]


def test_of_two_entries_the_one_that_was_in_force_is_stale(folder: Path, accept: Accept) -> None:
    (folder / "mine.toml").write_text(_OLD + _OLD.replace("<2.14", ">=2.14"))
    accept([case("clip", "SGD", "stale")], torch="2.14.1+cu130")
    assert (folder / "mine.toml").read_text() == _OLD


def test_two_subjects_of_one_ledger_keep_what_one_of_them_needs(folder: Path, accept: Accept) -> None:
    other = {"subject": "mine.Other"}
    code, printed = accept([case("none.position", "Adam", "stale"), case("none.position", "Adam", "known", **other)])
    assert code == 1
    assert "also matches 1 of 2 cases" in printed
    assert (folder / "mine.toml").read_text() == LEDGER


def test_windows_line_ends_stay(folder: Path, accept: Accept) -> None:
    (folder / "mine.toml").write_bytes(LEDGER.replace("\n", "\r\n").encode())
    accept([case("tied", "SGD", "fail"), case("none.position", "Adam", "stale")])
    raw = (folder / "mine.toml").read_bytes()
    assert raw.count(b"\r\n") == raw.count(b"\n")
    assert "tied[SGD-ws2]" in _cases(folder)


@pytest.mark.parametrize("name", ["wide.toml", "a link"])
def test_the_ledger_that_a_link_leads_to_is_written(folder: Path, accept: Accept, name: str) -> None:
    (folder / name).symlink_to("mine.toml")
    accept([case("tied", "SGD", "fail")], ledger=name)
    assert (folder / name).is_symlink()
    assert "tied[SGD-ws2]" in _cases(folder)


def test_every_ledger_of_the_kit_can_be_brought_up_to_date(folder: Path, accept: Accept) -> None:
    suites = Path(sys.modules["everyrank.suites"].__path__[0])
    ledgers = sorted(suites.glob("*/*.toml"))
    assert ledgers
    for ledger in ledgers:
        mine = folder / ledger.relative_to(suites)
        mine.parent.mkdir(exist_ok=True)
        for file in ledger.parent.glob("*.toml"):  # those that it includes, too
            (mine.parent / file.name).write_bytes(file.read_bytes())
        before = _stated(mine)
        first = next(iter(before))
        law, _, label = first.replace("*", "x").replace("?", "x").partition("[")
        stale = case(law, case=f"a/{law}[{label}", outcome="stale")
        novel = case("novel", label[:-1] or "x", "fail")
        code, printed = accept([stale, novel], ledger=str(mine))
        assert code == 0, printed
        after = _stated(mine)
        assert [name for name in after if name.startswith("novel[")]
        assert {name: entry for name, entry in after.items() if not name.startswith("novel[")} == {
            name: entry for name, entry in before.items() if name != first
        }


def _stated(ledger: Path) -> dict[str, Entry]:
    """Return what is stated of each case, wherever it is listed."""
    return {entry.case: replace(entry, source=()) for entry in read_as_the_kit_does(ledger).entries}


def test_a_dry_run_shows_what_it_would_change_and_changes_nothing(folder: Path, accept: Accept) -> None:
    """As a person reads it. EXPECTTEST_ACCEPT=1 writes it anew: then read it."""
    cases = [
        case("none.position", "Adam", "stale"),
        case("none.position", "Muon", "fail", message="step 3, w on rank 1: 4 ULPs"),
        case("tied", "SGD", "crash"),
    ]
    code, printed = accept(cases, "--dry-run")
    assert code == 1
    assert (folder / "mine.toml").read_text() == LEDGER
    expecttest.assert_expected_inline(
        re.sub(r"(?m)^ $", "", printed),  # an editor would cut the blanks off
        """\
--- mine.toml
+++ mine.toml
@@ -2,18 +2,18 @@
 subject = "mine.Optimizer"

 # --- about None ---
-
-[[known]]
-case = "none.position[Adam-ws2]"
-kind = "fail"
-issue = "https://example.org/1" # reported in May
-note = "the neighbours' gradient"

 # why SGD too: see above
 [[known]]
 case = "none.position[SGD-*]"
 kind = "fail"
 issue = "unreported"
+
+[[known]]
+case = "none.position[Muon-ws2]"
+kind = "fail"
+issue = "unreported"
+note = "step 3, w on rank 1: 4 ULPs"

 # --- about clipping ---
 [[known]]
not accepted: a crash is never accepted
  mine.Optimizer rpc-optimizer/tied[SGD-ws2]
dry run, nothing was written: 1 deviation added as unreported, 1 stale entry removed, 1 case not accepted
""",
    )


def test_the_last_entry_goes_without_the_table_of_blind_spots_below_it(folder: Path, accept: Accept) -> None:
    blind = '\n[blind]\nsome-rogue = "the same"\n'
    (folder / "mine.toml").write_text(LEDGER.replace("\n# the end\n", blind))
    code, printed = accept([case("clip", "SGD", "stale")])
    assert code == 0, printed
    assert read_as_the_kit_does(folder / "mine.toml").blind == {"some-rogue": "the same"}
    assert _cases(folder) == ["none.position[Adam-ws2]", "none.position[SGD-*]"]


_QUICK = [LeftOutPart(filter="--profile=quick", reason="that --profile=full runs", cases=40)]


@pytest.mark.parametrize(
    ("test", "command"),
    [
        ("test_mine.py::test_optimizer", "pytest test_mine.py::test_optimizer"),
        ("a b.py::test_optimizer", "pytest 'a b.py::test_optimizer'"),
        ("x/named_subject.py::test_subject", "everyrank run MODULE:SUBJECT"),  # it has no test of its own
    ],
)
def test_what_is_accepted_from_a_part_of_a_laws_cases_comes_with_the_command_for_all(
    accept: Accept, test: str, command: str
) -> None:
    code, printed = accept(
        [case("parity.schedule", "SGD", "fail", test=test), case("clip", "x", "fail")], left_out=_QUICK
    )
    assert code == 0
    assert printed.splitlines()[-3:] == [
        "--profile=quick had a part of the cases of parity.schedule, and takes others next time: those that deviate "
        "alike will be red. All of them:",
        f"    {command} -k 'parity.schedule[' --profile=full --run-file=full.jsonl",
        "    everyrank accept full.jsonl",
    ]


def test_a_run_with_all_cases_has_no_others(accept: Accept) -> None:
    filtered = [LeftOutPart(filter="--law clip", reason="of other laws", cases=40)]
    code, printed = accept([case("parity.schedule", "SGD", "fail")], left_out=filtered)
    assert (code, printed.splitlines()[-1]) == (0, "1 deviation added as unreported")
