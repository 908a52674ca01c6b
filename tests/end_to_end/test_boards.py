"""The boards of this repository: what they lack is named, and a subject's package is in the run file."""

from __future__ import annotations

import re
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from everyrank.reports.runfile.read import read

from tests.inner import Project

BOARDS = Path(__file__).parents[2] / "boards"
MODULES = {"accelerate": "accelerate", "fairscale": "fairscale", "lightning-fabric": "lightning_fabric"}


def test_a_board_has_its_cases_or_names_the_package_that_it_lacks(project: Project) -> None:
    files = sorted((BOARDS / "trainers").iterdir())
    for path in files:
        if path.is_file():
            project.write(path.name, path.read_text())
    names = [path.name for path in files if path.name.startswith("test_")]
    inner = project.run("--collect-only", "-q", "-rs", *names)
    missing = [package for package, module in MODULES.items() if find_spec(module) is None]
    assert re.findall(r"pip install ([\w-]+)", inner.out) == missing, inner.out
    assert len(names) == len(MODULES)


def test_every_package_of_a_board_is_pinned() -> None:
    lines = [line for line in (BOARDS / "packages.txt").read_text().splitlines() if not line.startswith("#")]
    pinned = dict(line.split("==") for line in lines)
    texts = "".join(path.read_text() for path in (BOARDS / "trainers").glob("test_*.py"))
    assert pinned.keys() == set(re.findall(r'package="([\w-]+)"', texts)) == MODULES.keys()


def test_a_run_file_has_the_version_of_a_subjects_package(project: Project) -> None:
    project.write(
        "test_mine.py",
        """
        from everyrank.suites import Subject, conformance
        from everyrank.suites.trainer.subjects.ddp import Ddp

        MINE = Subject("mine", contract="trainer", build=Ddp, package="pytest-xdist")
        GONE = Subject("gone", contract="trainer", build=Ddp, package="no-such-package")

        @conformance(MINE, GONE)
        def test_mine(case):
            case.run()
        """,
    )
    project.run("test_mine.py", "--law", "loss", "--profile=quick", "--run-file", "run.jsonl")
    found = read(project.folder / "run.jsonl").header.packages
    assert found == {"mine": f"pytest-xdist {version('pytest-xdist')}", "gone": "no-such-package"}
