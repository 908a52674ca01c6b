"""The command ``everyrank``: run a subject from the shell."""

from __future__ import annotations

import subprocess
import sys

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
    return subprocess.run(
        [sys.executable, "-m", "everyrank", *arguments],
        cwd=project.folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )


def test_a_subject_that_keeps_the_law_ends_well_and_its_cases_are_counted(project: Project) -> None:
    done = _everyrank(project, "run", "mine:GOOD", "--law=state.kept")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 cases in " in done.stdout
    assert "1 pass" in done.stdout


def test_a_subject_that_breaks_it_ends_badly(project: Project) -> None:
    done = _everyrank(project, "run", "mine:BAD", "--law=state.kept")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "[fail] mine.Bad rpc-optimizer/state.kept[ws2]" in done.stdout
    assert "1 fail" in done.stdout


def test_what_is_no_subject_is_one_clear_message(project: Project) -> None:
    for named, text in (
        ("mine", "name a subject as module:NAME, not 'mine'"),
        ("yours:GOOD", "yours:GOOD: No module named 'yours'"),
        ("mine:NONE", "mine:NONE is not a Subject but None"),
        ("mine:ODD", "unknown contract 'no-such': there are "),
    ):
        done = _everyrank(project, "run", named)
        assert done.returncode not in (0, 1), named
        told = done.stdout + done.stderr
        assert text in told, told
        assert "Traceback" not in told, told


def test_an_unknown_command_names_those_that_there_are(project: Project) -> None:
    done = _everyrank(project, "rnu")
    assert done.returncode == 2
    assert "there is no command 'rnu'" in done.stderr
    assert "kill-matrix" in done.stderr


def test_without_a_command_it_tells_its_commands(project: Project) -> None:
    done = _everyrank(project)
    assert done.returncode == 0
    assert "usage: everyrank COMMAND" in done.stdout
