"""The launcher ``spawn`` imports torch and pytest once, and nothing of the tests: its ranks are forks of that."""

from __future__ import annotations

import pytest

from tests.inner import Inner, Project

pytestmark = pytest.mark.group("clusters")

#: A conftest is imported on every rank, in its own process.
CONFTEST = """
    import os
    import torch

    IMPORTED_BY = os.getpid()
"""

SOURCE = """
    import os, signal, sys, threading
    import pytest
    import torch
    import torch.distributed as dist
    from conftest import IMPORTED_BY

    fresh = pytest.mark.world(2, fresh=True)

    def start_of(pid):
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().split(b"\\0")[3].decode()

    def note(record_property):
        record_property("pid", os.getpid())
        record_property("parent", os.getppid())
        record_property("start", start_of(os.getpid()))
        with open(f"/proc/{os.getppid()}/maps") as file:
            record_property("imported_once", "libtorch" in file.read())
        record_property("threads", os.environ["OMP_NUM_THREADS"])

    @fresh
    def test_first(process_group, record_property):
        note(record_property)
        assert IMPORTED_BY == os.getpid()
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == 2

    @fresh
    def test_second(process_group, record_property):
        note(record_property)
        assert IMPORTED_BY == os.getpid()

    @fresh
    def test_kills_its_parent(world):
        world.barrier()
        if world.rank == 0:
            os.kill(os.getppid(), signal.SIGKILL)
        threading.Event().wait()

    @fresh
    def test_afterwards(process_group, record_property):
        note(record_property)
"""


def run(project: Project, *arguments: str) -> Inner:
    project.write("conftest.py", CONFTEST)
    project.write("test_inner.py", SOURCE)
    return project.run("--launcher=spawn", *arguments)


def test_ranks_are_forks_of_one_process_that_has_imported_no_tests(project: Project) -> None:
    inner = run(project, "-k", "first or second")
    assert inner.outcomes() == {"test_first": "passed", "test_second": "passed"}, inner.out
    first, second = (inner[name].properties for name in ("test_first", "test_second"))
    assert first["parent"] == second["parent"]
    assert first["pid"] != second["pid"]
    assert first["start"] != "rank"
    assert first["imported_once"]
    assert first["threads"] == "1"


def test_no_plugin_is_imported_before_pytest_rewrites_its_assertions(project: Project) -> None:
    project.write("pytest.ini", "[pytest]\nfilterwarnings = error")
    project.write("conftest.py", 'pytest_plugins = ["pytester"]')
    project.write("test_inner.py", "import pytest\n\n@pytest.mark.world(2)\ndef test_it(world): ...\n")
    inner = project.run("--launcher=spawn")
    assert inner.outcomes() == {"test_it": "passed"}, inner.out


def test_by_option_each_rank_is_an_interpreter_of_its_own(project: Project) -> None:
    inner = run(project, "-k", "first", "-o", "everyrank_preload=false")
    assert inner.outcomes() == {"test_first": "passed"}, inner.out
    found = inner["test_first"].properties
    assert (found["start"], found["imported_once"]) == ("rank", False)


def test_an_import_that_starts_threads_is_left_to_the_ranks(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("numpy")  # its OpenBLAS starts them, and torch imports it
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "2")
    inner = run(project, "-k", "first")
    assert inner.outcomes() == {"test_first": "passed"}, inner.out
    assert not inner["test_first"].properties["imported_once"]


def test_the_death_of_that_process_fails_the_running_test_and_the_run_goes_on(project: Project) -> None:
    inner = run(project, "-k", "parent or afterwards")
    assert inner.outcomes() == {"test_kills_its_parent": "failed", "test_afterwards": "passed"}, inner.out
    assert "SIGKILL" in inner["test_kills_its_parent"].text
    assert inner["test_afterwards"].properties["start"] == "rank"
