"""The examples are what a user starts from: they pass as they stand, under the wheel. Blocks: test_documents.py."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from everyrank.declare.requirements import missing_gpus
from everyrank.devices.cuda import CUDA
from everyrank.resources.gpus.needs import Needs

from ci.files import Unknown, project_files
from tests.inner import Inner, Project

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


@pytest.fixture(scope="module")
def example(module_project: Project) -> Inner:
    shutil.copytree(EXAMPLES / "my_project", module_project.folder, dirs_exist_ok=True)
    return module_project.run()


def test_every_example_passes(example: Inner) -> None:
    assert set(example.outcomes().values()) == {"passed"}, example.out
    assert example.code == 0


@pytest.mark.parametrize(
    "name",
    [
        "test_all_reduce",
        "test_mean_of_all_ranks[ws3]",
        "test_gradients_are_those_of_the_sum_of_all_losses[ws8]",
        "test_every_worker_counts[worker2]",
    ],
)
def test_the_kinds_of_test_that_the_readme_names_are_there(example: Inner, name: str) -> None:
    assert example[name].outcome == "passed"


@pytest.fixture(scope="module")
def own_optimizer(tmp_path_factory: pytest.TempPathFactory, module_project: Project, example: Inner) -> Inner:
    project = Project(tmp_path_factory.mktemp("own_optimizer"), module_project.servers)
    shutil.copytree(EXAMPLES / "own_optimizer", project.folder, dirs_exist_ok=True)
    return project.run("--law=parity.train", "--profile=full", "-k", "(Lion or ScheduleFree) and ws2")


@pytest.mark.parametrize("optimizer", ["Lion", "ScheduleFree"])
def test_an_optimizer_that_torch_does_not_have_is_asked_for_the_laws(own_optimizer: Inner, optimizer: str) -> None:
    if optimizer == "ScheduleFree":
        pytest.importorskip("schedulefree", reason="schedulefree is not installed")
    mine = {name: end for name, end in own_optimizer.outcomes().items() if f"[{optimizer}-" in name}
    assert mine, own_optimizer.out
    assert set(mine.values()) == {"passed"}, own_optimizer.out


class Elsewhere:
    """A folder beside no checkout, with the wheel in front of what this interpreter has installed."""

    def __init__(self, folder: Path, files: Iterable[str]) -> None:
        self.folder = folder
        source, build = folder / "source", "from setuptools import build_meta; print(build_meta.build_wheel('..'))"
        for name in files:
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
        command = [sys.executable, "-c", build]
        built = subprocess.run(command, cwd=source, capture_output=True, text=True, check=True, timeout=240)
        with zipfile.ZipFile(folder / built.stdout.splitlines()[-1]) as wheel:
            wheel.extractall(folder / "installed")

    def run(self, example: str, *arguments: str, sabotage: tuple[str, str, str] | None = None) -> tuple[int, str]:
        """Run an example as it stands, or with one text of a file replaced."""
        here = self.folder / example
        shutil.copytree(EXAMPLES / example, here, dirs_exist_ok=True)
        if sabotage is not None:
            name, old, new = sabotage
            text = (here / name).read_text()
            assert old in text
            (here / name).write_text(text.replace(old, new))
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        environment["PYTHONPATH"] = str(self.folder / "installed")
        program = "import everyrank; print(everyrank.__file__)"
        found = subprocess.run(
            [sys.executable, "-c", program], cwd=here, env=environment, capture_output=True, text=True
        )
        assert found.stdout.startswith(str(self.folder)), found.stdout + found.stderr
        command = [sys.executable, "-m", "pytest", "-p", "no:randomly", "-p", "no:cacheprovider", *arguments]
        done = subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True, timeout=300)
        return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Elsewhere]:
    try:
        files = project_files()
    except Unknown as reason:
        pytest.skip(str(reason))
    folder = tmp_path_factory.mktemp("elsewhere")
    yield Elsewhere(folder, files)
    shutil.rmtree(folder)


@pytest.mark.group("packages")
@pytest.mark.parametrize(
    ("example", "arguments", "ends"),
    [
        ("my_project", (), "passed"),
        ("own_optimizer", ("--law=parity.train", "--optimizer=Lion", "--profile=quick"), "passed"),
        ("own_wrapper", ("--profile=quick",), "passed"),
        ("own_model", (), "2 passed"),
        ("adopted", (), "1 passed"),
        ("gpus", (), "skipped" if missing_gpus(Needs(2, 2), CUDA.found()) else "passed"),
    ],
)
def test_an_example_passes_under_the_wheel(
    elsewhere: Elsewhere, example: str, arguments: tuple[str, ...], ends: str
) -> None:
    code, printed = elsewhere.run(example, *arguments)
    assert code == 0, printed
    assert ends in printed.splitlines()[-1], printed


@pytest.mark.group("packages")
def test_a_mistake_in_the_wrapper_is_named(elsewhere: Elsewhere) -> None:
    _, printed = elsewhere.run(
        "own_wrapper",
        *("--law=parity.train", "--optimizer=SGD"),
        sabotage=("averaging.py", " / dist.get_world_size()", ""),
    )
    assert "as if the gradients of the" in printed, printed
    assert "failed" in printed.splitlines()[-1]


@pytest.mark.group("packages")
def test_a_mistake_in_the_model_is_named(elsewhere: Elsewhere) -> None:
    sabotage = ("model.py", "gradient = gradient.contiguous().clone()\n        dist.all_reduce(gradient)\n", "pass\n")
    _, printed = elsewhere.run("own_model", sabotage=sabotage)
    assert "parity: gradient of the output of `blocks.0` is wrong on ranks 0 and 1" in printed, printed
