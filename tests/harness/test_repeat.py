"""The line "to repeat" repeats the failure, wherever the run was started and however its tests were named."""

from __future__ import annotations

import re
import shlex

from tests.inner import Project

FAILS = """
    import pytest

    @pytest.mark.world(2)
    def test_good(): pass

    @pytest.mark.world(2)
    @pytest.mark.parametrize("name", ["it's one", "two"])
    def test_bad(name):
        assert name == "two"
"""


def _repeats(project: Project, folder: str, *arguments: str) -> None:
    """Run pytest in a folder, then run the printed line there: it must repeat the failure alone."""
    cwd = project.folder / folder

    def run(arguments: list[str]) -> str:
        done = project.python("-m", "pytest", *arguments, folder=cwd)
        assert done.returncode == 1, done.stdout + done.stderr
        project.assert_nothing_left()
        return done.stdout

    plain = [argument for argument in project.command()[3:] if argument not in ("--rootdir", str(project.folder))]
    out = run([*plain, *arguments])
    (line,) = re.findall(r"-+ to repeat -+\n(.*)\n", out)
    command, *rest = shlex.split(line, comments=True)
    assert command == "pytest"
    again = run([*plain, *rest])
    assert "1 failed in" in again
    assert line in again.splitlines()


def test_in_the_folder_of_the_project(project: Project) -> None:
    project.write("pytest.ini", "[pytest]")
    project.write("tests/test_inner.py", FAILS)
    _repeats(project, ".", "tests")


def test_in_a_folder_below(project: Project) -> None:
    project.write("pytest.ini", "[pytest]")
    project.write("tests/test_inner.py", FAILS)
    _repeats(project, "tests", "test_inner.py", "--world-seed=4")


def test_of_a_package_that_is_installed_elsewhere(project: Project) -> None:
    project.write("here/pytest.ini", "[pytest]")
    project.write("farpackage/__init__.py", "")
    project.write("farpackage/test_inner.py", FAILS)
    _repeats(project, "here", "--pyargs", "farpackage")
