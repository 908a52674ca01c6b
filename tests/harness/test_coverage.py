"""Coverage of ranks, under pytest-cov and under plain coverage, with correct totals."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.engines import elsewhere
from tests.inner import Project

WORK = """\
import os


def at_rank(rank, ask):
    if rank == 0:
        return "zero"
    if rank == 1:
        return "one"
    if ask == "never":
        return "nobody comes here"
    return "some other"


def late():
    return "in a wider fixture's teardown"


def in_a_fresh_world():
    return "new processes"


def before_death():
    return "in the test before"


def dies():
    os.kill(os.getpid(), 9)


def alone():
    return "in the controller"
"""

TESTS = """\
import pytest
import work


@pytest.fixture(scope="module")
def wide():
    yield
    work.late()


@pytest.mark.world(2)
def test_two(world):
    assert work.at_rank(world.rank, "")


@pytest.mark.world(3)
def test_three(world, wide):
    assert work.at_rank(world.rank, "")


@pytest.mark.world(2, fresh=True)
def test_fresh(world):
    work.in_a_fresh_world()


@pytest.mark.world(1)
def test_before(world):
    work.before_death()


@pytest.mark.world(1)
@pytest.mark.xfail(raises=__import__("everyrank").RankLost)
def test_dies(world):
    work.dies()


def test_single():
    assert work.alone()
"""


def lines(*texts: str) -> set[int]:
    return {number for number, line in enumerate(WORK.splitlines(), 1) if any(text in line for text in texts)}


#: What nobody runs; and a line that its process does not survive.
MISSED = lines("nobody comes here", "os.kill")


def write_code(project: Project) -> Project:
    project.write("work.py", WORK)
    project.write("test_inner.py", TESTS)
    project.write(".coveragerc", "[run]\nsource = .\nomit = everyrank_*\n")
    return project


@pytest.fixture
def covered(project: Project) -> Project:
    return write_code(project)


def report_of_work(project: Project, *options: str) -> dict[str, Any]:
    """Return the report of ``coverage json`` on work.py."""
    assert project.python("-m", "coverage", "json", "-q", "-o", "report.json", *options).returncode == 0
    found: dict[str, Any] = json.loads((project.folder / "report.json").read_text())["files"]["work.py"]
    return found


def data_files(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if name.startswith(".coverage") and name != ".coveragerc")


HOW = [elsewhere(["--launcher=spawn"]), ["--fresh-worlds"], ["-n", "2"]]


@pytest.mark.parametrize("options", HOW, ids=" ".join)
def test_pytest_cov_has_the_lines_of_all_ranks(covered: Project, options: list[str]) -> None:
    inner = covered.run("--cov", "--cov-report=", *options)
    assert inner.code == 0, inner.out
    assert not inner.warnings
    assert set(report_of_work(covered)["missing_lines"]) == MISSED
    assert data_files(covered.folder) == [".coverage"]


@pytest.mark.parametrize("options", [[], elsewhere(["--launcher=spawn"])], ids=" ".join)
def test_plain_coverage_has_them_without_combining(covered: Project, options: list[str]) -> None:
    python, *rest = covered.command(*options)
    done = (
        subprocess.run(  # no fork of a process that has imported torch: coverage would look at torch.ops at its start
            [python, "-m", "coverage", "run", *rest],
            cwd=covered.folder,
            env=covered.environment(),
            capture_output=True,
            text=True,
            check=False,
        )
    )
    assert done.returncode == 0, done.stdout
    assert "Warning" not in done.stdout + done.stderr
    assert set(report_of_work(covered)["missing_lines"]) == MISSED
    assert data_files(covered.folder) == [".coverage"]
    covered.assert_nothing_left()


@pytest.fixture(scope="module")
def with_branches(module_project: Project) -> dict[str, Any]:
    """The report of a run that measures branches and contexts; one test is not to be measured."""
    write_code(module_project)
    module_project.write("test_inner.py", TESTS.replace("def test_fresh", "@pytest.mark.no_cover\ndef test_fresh"))
    inner = module_project.run("--cov", "--cov-branch", "--cov-context=test", "--cov-report=")
    assert inner.code == 0, inner.out
    return report_of_work(module_project, "--show-contexts")


def test_branches_are_measured_if_the_command_line_asks(with_branches: dict[str, Any]) -> None:
    before, after = min(lines('"never"')), min(lines("nobody comes here"))
    assert with_branches["missing_branches"] == [[before, after]]


def test_contexts_name_the_test_that_ran_a_line_on_a_rank(with_branches: dict[str, Any]) -> None:
    two, three = "test_inner.py::test_two|run", "test_inner.py::test_three|run"
    assert with_branches["contexts"][str(min(lines('"some other"')))] == [three]
    assert set(with_branches["contexts"][str(min(lines('"one"')))]) == {two, three}


def test_lines_marked_as_excluded_are_not_measured(with_branches: dict[str, Any]) -> None:
    assert set(with_branches["missing_lines"]) == MISSED | lines("new processes")


@pytest.mark.group("clusters")
def test_clean_interpreters_have_contexts_too(covered: Project) -> None:
    inner = covered.run("--cov", "--cov-context=test", "--cov-report=", "-k", "three", "--launcher=spawn")
    assert inner.code == 0, inner.out
    contexts = report_of_work(covered, "--show-contexts")["contexts"]
    assert contexts[str(min(lines('"some other"')))] == ["test_inner.py::test_three|run"]


def test_without_coverage_no_rank_knows_of_it(project: Project) -> None:
    project.write("test_inner.py", "import sys\ndef test_ranks(world):\n    assert 'coverage' not in sys.modules\n")
    assert project.run("-p", "no:pytest_cov")["test_ranks"].outcome == "passed"
