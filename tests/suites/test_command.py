"""A subject without a test file: the command ``everyrank run`` from the shell, and ``run`` from Python."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace

import pytest
from everyrank.cli import main
from everyrank.fixtures import optimizers
from everyrank.suites import Subject
from everyrank.suites.collect.named_subject import load
from everyrank.suites.command import count, kill_matrix
from everyrank.suites.engine.case import cases
from everyrank.suites.engine.contract import contracts
from everyrank.suites.errors import DeclarationError

from tests.inner import Project

SUBJECT = """
    from everyrank.fixtures.exemplars.rpc_optimizer import RpcOptimizer
    from everyrank.suites import Subject

    GOOD = Subject("mine.Good", contract="rpc-optimizer", build=RpcOptimizer)

    class Silent(RpcOptimizer):
        def step(self, context_id):
            pass

    BAD = Subject("mine.Bad", contract="rpc-optimizer", build=Silent)
    ODD = Subject("mine.Odd", contract="no-such", build=Silent)
"""


def _everyrank(project: Project, *arguments: str) -> subprocess.CompletedProcess[str]:
    project.write("mine.py", SUBJECT)
    environment = {name: value for name, value in project.environment().items() if name != "PYTHONPATH"}
    return project.python("-m", "everyrank", *arguments, environment=environment)


def test_a_subject_that_keeps_the_law_ends_well_and_its_cases_are_counted(project: Project) -> None:
    done = _everyrank(project, "run", "mine:GOOD", "--law=state.kept")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 case in " in done.stdout
    assert "1 pass" in done.stdout


def test_a_subject_that_breaks_it_ends_badly_and_the_printed_command_repeats_one_failure(project: Project) -> None:
    first = _everyrank(
        project, "run", "mine:BAD", "-k", "parity.one-step[SGD-momentum or state.kept", "--world-seed=3"
    )
    assert first.returncode == 1, first.stdout + first.stderr
    assert "[fail] mine.Bad rpc-optimizer/state.kept[ws2]" in first.stdout
    assert "2 fail" in first.stdout
    lines = [line for line in first.stdout.splitlines() if line.startswith("everyrank run ")]
    assert len(lines) == 2, first.stdout
    again = _everyrank(project, *shlex.split(lines[0], comments=True)[1:])
    assert [line for line in again.stdout.splitlines() if line.startswith("everyrank run ")] == lines[:1]


def test_every_case_can_be_named_to_pytests_filter() -> None:
    """The filter is the whole id, which is part of no other id."""
    for name in contracts():
        ids = [case.id for case in cases(Subject("any", contract=name, build=print))]
        assert all(re.fullmatch(r"[\w/.\-\[\]+:]+", case_id) for case_id in ids)
        assert all(case_id.startswith(f"{name}/") and case_id.endswith("]") for case_id in ids)
    assert not any(first != second and first.endswith(second) for first in contracts() for second in contracts())


def test_an_argument_that_is_not_a_subject_gives_one_clear_message(project: Project) -> None:
    for named, text in (
        ("mine", "name a subject as module:NAME, not 'mine'"),
        ("yours:GOOD", "yours:GOOD: No module named 'yours'"),
    ):
        with pytest.raises(DeclarationError, match=f"^{re.escape(text)}$"):
            load(named)
    for named, text in (
        ("mine:NONE", "mine:NONE is not there; mine has GOOD, BAD, ODD"),
        ("mine:ODD", "unknown contract 'no-such': there are "),
    ):
        done = _everyrank(project, "run", named)
        assert done.returncode not in (0, 1), named
        output = done.stdout + done.stderr
        assert text in output, output
        assert "Traceback" not in output, output


CALLS = """
    import mine
    from everyrank.suites import Subject, run

    KNOWN = Subject("known", contract="rpc-optimizer", build=mine.Silent, known="known.toml")
    TYPO = Subject("typo", contract="rpc-optimizer", build=mine.Silent, known="typo.toml")

    if __name__ == "__main__":
        for subject, *arguments in (
            (mine.GOOD, "--law=state.kept"), (mine.BAD, "--law=state.kept"), (KNOWN, "--law=state.kept"),
            (mine.ODD,), (TYPO,), (mine.GOOD, "--law=nope"), (mine.GOOD, "-k", "nope"),
            (mine.GOOD, "--law=state.kept", "-n", "1"),
        ):
            try:
                print("RETURNED", subject.name, run(subject, *arguments))
            except Exception as error:
                print("RAISED", subject.name, type(error).__name__, error)
"""


def test_from_python_it_returns_outcomes_or_raises_but_never_returns_nothing(project: Project) -> None:
    project.write("lib/mine.py", SUBJECT)
    calls = project.write("lib/calls.py", CALLS)
    entry = '[[known]]\ncase = "state.kept[ws2]"\nkind = "fail"\nissue = "unreported"\n'
    project.write("lib/known.toml", entry)
    project.write("lib/typo.toml", entry.replace("kept", "kpet"))
    project.write("pytest.ini", "[pytest]\nfilterwarnings = error")
    # The arguments tell the fork server that an interpreter will be wanted: that of the last call.
    done = project.python(str(calls), "-n", "1")
    output = [line for line in done.stdout.splitlines() if line.startswith(("RETURNED", "RAISED"))]
    case = "rpc-optimizer/state.kept[ws2]"
    assert output == [
        f"RETURNED mine.Good {{'{case}': 'pass'}}",
        f"RETURNED mine.Bad {{'{case}': 'fail'}}",
        f"RETURNED known {{'{case}': 'known'}}",
        "RAISED mine.Odd DeclarationError unknown contract 'no-such': there are "
        "parameter-server, replicate, rpc-optimizer, sharded-optimizer, trainer",
        "RAISED typo LedgerError typo.toml: the entry 'state.kpet[ws2]' matches no case: correct or remove it",
        "RAISED mine.Good RuntimeError no verdict on mine.Good: pytest ended with USAGE_ERROR",
        "RAISED mine.Good RuntimeError no verdict on mine.Good: pytest ended with NO_TESTS_COLLECTED",
        "RAISED mine.Good RuntimeError no verdict on mine.Good: pytest ended with TESTS_FAILED",
    ], done.stdout + done.stderr
    prompt = "import calls; run = calls.run; print('RETURNED', run(calls.KNOWN, '--law=state.kept'))"
    done_there = project.python("-c", prompt, folder=calls.parent)
    assert f"RETURNED {{'{case}': 'known'}}" in done_there.stdout, done_there.stdout + done_there.stderr
    assert "run(SUBJECT) is for one process: for several, `everyrank run module:NAME -n auto`" in done.stdout


def test_the_cost_of_a_value_is_counted_in_each_profile(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A row that a subject's module registers is counted with the others."""
    row = optimizers.row("SGD")
    mine = optimizers.register(replace(row, optimizer=type("Mine", (row.optimizer,), {})))
    try:
        assert count(["rpc-optimizer"]) == 0
    finally:
        optimizers.unregister(mine.name)
    head, profiles, *lines = capsys.readouterr().out.splitlines()
    assert head == "rpc-optimizer (rpc-optimizer), cases in the profiles"
    assert profiles.split() == ["quick", "default", "full"]
    counts = {line[:-27].strip(): [int(number.replace(",", "")) for number in line[-27:].split()] for line in lines}
    quick, default, full = counts["optimizer Mine"]
    assert 0 < quick < default < full
    assert counts["all"][2] == sum(numbers[2] for name, numbers in counts.items() if name.startswith("law "))
    assert {"law state.kept", "optimizer Adam", "world size 3"} < counts.keys()


def test_the_cost_of_what_is_no_subject_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    for named, text in (("nowhere:MINE", "No module named 'nowhere'"), ("rpc", "unknown contract 'rpc'")):
        with pytest.raises(SystemExit) as ended:
            count([named])
        assert ended.value.code == 2
        assert text in capsys.readouterr().err


def test_an_unknown_command_lists_the_known_commands_and_none_lists_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rnu"]) == 2
    error = capsys.readouterr().err
    assert "there is no command 'rnu'" in error
    assert "kill-matrix" in error
    assert main([]) == 0
    assert "usage: everyrank COMMAND" in capsys.readouterr().out


def test_a_word_of_pytests_that_begins_as_an_option_of_ours_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    executed: list[list[str]] = []
    monkeypatch.setattr(os, "execve", lambda program, command, environment: executed.append(command))
    kill_matrix(["--contract", "trainer", "--co"])
    assert "--co" in executed[0]


def test_the_kill_matrix_takes_no_filter(project: Project) -> None:
    done = _everyrank(project, "kill-matrix", "--optimizer=SGD")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "the kill matrix takes no --optimizer, since part" in done.stderr


def test_a_reader_that_closes_the_pipe_ends_a_command_in_silence() -> None:
    reads, writes = os.pipe()
    os.close(reads)
    command = [sys.executable, "-m", "everyrank", "cases", "trainer"]
    with os.fdopen(writes, "wb") as closed:
        done = subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
