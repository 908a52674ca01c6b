"""The line "to repeat" repeats the failure, wherever the run was started and however its tests were named."""

from __future__ import annotations

import re
import shlex
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from everyrank.verdict.repeat import repeat_options

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
    assert re.search("= 1 failed(, [0-9]+ warnings)? in", again)
    assert line in again.splitlines()


def test_in_a_folder_below(project: Project) -> None:
    project.write("pytest.ini", "[pytest]")
    project.write("tests/test_inner.py", FAILS)
    _repeats(project, "tests", "test_inner.py", "--world-seed=4")


def test_of_a_package_that_is_installed_elsewhere(project: Project) -> None:
    project.write("here/pytest.ini", "[pytest]")
    project.write("farpackage/__init__.py", "")
    project.write("farpackage/test_inner.py", FAILS)
    _repeats(project, "here", "--pyargs", "farpackage")


#: A test case of torch's, which fails by everyrank's verdict alone, and only under each of the options of a run.
ADOPTED = """
    import os
    from torch.testing._internal.common_distributed import MultiProcessTestCase
    from options import given

    class TestOfTorch(MultiProcessTestCase):
        world_size = 2

        def setUp(self):
            super().setUp()
            self._spawn_processes()

        def test_dies(self):
            if self.rank == 1 and given == ["deep", True]:
                os._exit(3)
"""


def test_under_all_options_that_made_it_fail(project: Project) -> None:
    project.write("pytest.ini", "[pytest]")
    project.write("options.py", "given = []")
    project.write(
        "conftest.py",
        """
        import options

        def pytest_addoption(parser):
            parser.addoption("--model", default="flat")
            parser.addini("wide", "", type="bool", default=False)

        def pytest_configure(config):
            options.given += [config.getoption("model"), config.getini("wide")]
        """,
    )
    project.write("test_inner.py", ADOPTED)
    _repeats(project, ".", "--adopt", "--model", "deep", "-o", "wide=yes")


def _options(adding: Any = (), folder: str = "/here", **options: Any) -> list[str]:
    config: Any = SimpleNamespace(
        option=Namespace(**options),
        invocation_params=SimpleNamespace(dir=Path(folder)),
        _parser=SimpleNamespace(_anonymous=SimpleNamespace(options=adding)),
    )
    return repeat_options(config)


def _added(name: str, default: object = None) -> Any:
    return SimpleNamespace(names=lambda: [name], dest=name.strip("-"), default=default)


@pytest.mark.parametrize(
    ("options", "texts"),
    [
        ({"adopt": True}, ["--adopt"]),
        ({"adopt": False, "launcher": None, "leaks": None, "require_gpus": 0, "world_seed": 0}, []),
        ({"launcher": "spawn", "leaks": "fail"}, ["--launcher=spawn", "--leaks=fail"]),
        (
            {"require_gpus": 2, "world_seed": 4, "timeout": 20.0},
            ["--require-gpus=2", "--world-seed=4", "--timeout=20"],
        ),
        ({"override_ini": ["a=b c", "d=e"]}, ["-o", "a=b c", "-o", "d=e"]),
        ({"pythonwarnings": ["error"], "inifilename": "ci.ini"}, ["-c", "ci.ini", "-W", "error"]),
        ({"plugins": ["no:randomly", "mine.plugin"]}, ["-p", "mine.plugin"]),
        ({"rootdir": "/elsewhere"}, ["--rootdir=/elsewhere"]),
        ({"rootdir": "/here"}, []),
        ({"keyword": "x", "markexpr": "y", "verbose": 2, "lf": True, "run_alone": False}, []),
    ],
)
def test_has_the_options_that_change_an_outcome(options: dict[str, Any], texts: list[str]) -> None:
    assert _options(**options) == texts


@pytest.mark.parametrize(
    ("option", "value", "texts"),
    [
        (_added("--model", "flat"), "deep", ["--model=deep"]),
        (_added("--model", "flat"), "flat", []),
        (_added("--slow", False), True, ["--slow"]),
        (_added("--size"), [1, 2], ["--size=1", "--size=2"]),
        (_added("--hub-token"), "hf_1", []),
        (_added("--limits"), {"memory": 1}, []),
    ],
)
def test_has_the_options_of_a_conftest(option: Any, value: object, texts: list[str]) -> None:
    assert _options([option], **{option.dest: value}) == texts
