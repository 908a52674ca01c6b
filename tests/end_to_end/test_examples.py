"""The examples are what a user starts from: they pass as they stand. Blocks in documents: test_documents.py."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

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
