"""A launcher of an installed package: one module, and one line in its entry points."""

from __future__ import annotations

from pathlib import Path

import pytest
from everyrank.errors import MisuseError
from everyrank.launch.launchers import find

from tests.inner import Project

LAUNCHER = """
    from everyrank.launch import spawn

    def launch(context):
        launcher = spawn.launch(context)
        launcher.name = "cluster"
        launcher.keeper_title = "cluster"
        return launcher
"""

REFUSES = """
    from everyrank.launch.protocol import CannotLaunch

    def launch(context):
        raise CannotLaunch("the cluster is asleep")
"""

TEST = """
    import os, signal, pytest

    @pytest.mark.world(2)
    def test_agrees(world):
        world.all_agree(1)

    @pytest.mark.world(2)
    def test_loses_its_launcher(world):
        if world.rank == 0:
            os.kill(os.getsid(0), signal.SIGKILL)  # the keeper leads the session
            while True:  # the kernel takes a while to end the ranks: a test that went on could pass before
                signal.pause()
        world.barrier()
"""


def install(project: Project, launcher: str, name: str = "cluster") -> None:
    project.write(f"{name}_launcher.py", launcher)
    project.install(name, "everyrank.launchers", f"cluster = {name}_launcher:launch")


def test_a_package_brings_a_launcher(project: Project) -> None:
    install(project, LAUNCHER)
    project.write("test_it.py", TEST)
    project.forks_keeper = True
    inner = project.run("--launcher=cluster")
    assert inner.outcomes() == {"test_agrees": "passed", "test_loses_its_launcher": "failed"}
    assert "the cluster was killed by SIGKILL, and all ranks with it" in inner["test_loses_its_launcher"].text


def test_an_unknown_name_lists_those_that_are_installed(project: Project) -> None:
    install(project, LAUNCHER)
    project.write("test_it.py", TEST)
    assert (
        "ERROR: --launcher: must be one of fork, spawn, torchrun, ray, cluster, not 'slurm'"
        in project.run("--launcher=slurm").out
    )


def test_a_launcher_that_refuses_is_replaced_with_a_warning(project: Project) -> None:
    install(project, REFUSES)
    project.write("test_it.py", TEST)
    project.forks_keeper = True
    inner = project.run("--launcher=cluster", "-k", "agrees")
    assert inner.outcomes() == {"test_agrees": "passed"}
    assert "--launcher=cluster is not possible: the cluster is asleep. Worlds are spawned instead" in inner.out


def test_a_launcher_that_cannot_be_imported_names_its_package(project: Project) -> None:
    install(project, "import no_such_module\n")
    project.write("test_it.py", TEST)
    inner = project.run("--launcher=cluster")
    assert (
        "ERROR: everyrank: the launcher 'cluster' (cluster_launcher:launch of cluster) cannot be imported: "
        "ModuleNotFoundError: No module named 'no_such_module'"
    ) in inner.out
    assert inner.outcomes() == {}


def test_two_packages_with_one_name_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = Project(tmp_path)
    install(project, LAUNCHER)
    install(project, LAUNCHER, name="other")
    monkeypatch.syspath_prepend(tmp_path)
    packages = "cluster_launcher:launch of cluster, other_launcher:launch of other"
    with pytest.raises(MisuseError, match=f"^several packages have a launcher 'cluster': {packages}$"):
        find("cluster")
