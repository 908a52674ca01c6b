"""``everyrank adopt-report``: lists what --adopt would do, without running a test."""

from __future__ import annotations

import subprocess

import pytest

from tests.inner import Project

SOURCE = """
    import os
    import pytest
    from torch.testing._internal.common_distributed import (
        MultiProcContinuousTest, MultiProcessTestCase, MultiThreadedTestCase
    )
    from torch.testing._internal.common_utils import TestCase

    class Spawned(MultiProcessTestCase):
        world_size = 3
        def setUp(self):
            super().setUp()
            self._spawn_processes()
        def test_1(self): os._exit(1)
        def test_2(self): os._exit(1)
        def test_DistributedDataParallel(self): os._exit(1)

    class ExpectsDeath(MultiProcessTestCase):
        def setUp(self):
            super().setUp()
            self.skip_return_code_checks = [self.test_dies.__wrapped__]
            self._spawn_processes()
        def test_dies(self): os._exit(1)

    class NoDevices(MultiProcessTestCase):
        world_size = 0
        def test_nobody(self): os._exit(1)

    class NoSize(MultiProcessTestCase):
        @property
        def world_size(self): return int(os.environ["NO_SUCH_VARIABLE"])
        def test_unknown(self): os._exit(1)

    class OwnJoin(MultiProcessTestCase):
        def _join_processes(self, fn): super()._join_processes(fn)
        def test_joined(self): os._exit(1)

    class JoinOfABase(OwnJoin):
        pass

    class Continuous(MultiProcContinuousTest):
        world_size = 2
        def test_1(self): os._exit(1)

    class OwnLoop(MultiProcContinuousTest):
        world_size = 2
        @classmethod
        def _worker_loop(cls, *arguments): super()._worker_loop(*arguments)
        def test_looped(self): os._exit(1)

    class Threads(MultiThreadedTestCase):
        def test_threads(self): os._exit(1)

    class Single(TestCase):
        def test_single(self): os._exit(1)

    def test_plain(): os._exit(1)

    RUN = ["python", "-m", "torch.distributed.run", "--nproc-per-node=2"]

    def test_runs_a_script(): os.execvp(RUN[0], RUN)
"""


def report(project: Project, *arguments: str) -> subprocess.CompletedProcess[str]:
    return project.python("-m", "everyrank", "adopt-report", "-p", "no:cacheprovider", *arguments)


@pytest.fixture(scope="module")
def lines(module_project: Project) -> list[str]:
    module_project.write("test_theirs.py", SOURCE)
    done = report(module_project, "test_theirs.py")
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout.splitlines()


LINES = [
    "adopted  test_theirs.py::Spawned: 2 tests; a world of 3, new processes for each test, 300 s",
    "adopted  test_theirs.py::Spawned: 1 test; a world of 3, new processes for each test, 500 s",
    "adopted  test_theirs.py::ExpectsDeath: 1 test; a world of 4, new processes for each test, 300 s; "
    "a test that expects a process to die fails here",
    "skipped  test_theirs.py::NoDevices: 1 test; its world_size is 0 on this machine, so no rank would run it",
    "left     test_theirs.py::NoSize: 1 test; its world_size cannot be read: KeyError: 'NO_SUCH_VARIABLE'",
    "left     test_theirs.py::OwnJoin: 1 test; "
    "it has its own _join_processes(), by which its processes are started or judged",
    "left     test_theirs.py::JoinOfABase: 1 test; "
    "it has its own _join_processes(), by which its processes are started or judged",
    "adopted  test_theirs.py::Continuous: 1 test; a world of 2, one world for all tests of the class, 300 s",
    "left     test_theirs.py::OwnLoop: 1 test; "
    "it has its own _worker_loop(), by which its processes are started or given tests",
    "left     test_theirs.py::Threads: 1 test; "
    "its ranks are threads of one process (MultiThreadedTestCase): there is nothing to launch",
    "left     test_theirs.py::Single: 1 test; it runs in one process",
    "other    test_theirs.py: 1 test; not written on torch.testing._internal",
    "watched  test_theirs.py: 1 test; it names torchrun, whose ranks would be watched",
    "14 tests: 5 would run on everyrank's ranks, 1 would be skipped, 6 would run as they do without --adopt, "
    "1 would run as they do without --adopt, and the ranks of their torchrun would be watched, "
    "1 not written on torch.testing._internal",
]


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.split(":")[2] if "::" in line else "sum")
def test_every_class_is_listed(lines: list[str], line: str) -> None:
    assert line in lines, "\n".join(lines)


def test_nothing_else_is_listed(lines: list[str]) -> None:
    assert len(lines) == len(LINES)


def test_each_test_has_a_line_if_asked_for(project: Project) -> None:
    project.write("test_theirs.py", SOURCE)
    done = report(project, "-v", "test_theirs.py", "-k", "Spawned")
    assert "adopted  test_theirs.py::Spawned::test_1: a world of 3" in done.stdout
    assert done.stdout.count("\n") == 4


def test_the_sum_of_one_test_is_one_test(project: Project) -> None:
    project.write("test_theirs.py", SOURCE)
    done = report(project, "test_theirs.py", "-k", "Continuous")
    assert done.stdout.endswith("\n1 test: 1 would run on everyrank's ranks\n")


def test_a_file_that_cannot_be_collected_is_reported(project: Project) -> None:
    project.write("test_theirs.py", "import no_such_module\n")
    project.write("test_without.py", "raise ImportError(\"No module named 'expecttest'\")\n")
    done = report(project, "test_theirs.py", "test_without.py")
    assert done.returncode != 0
    assert "no_such_module" in done.stderr
    assert "torch's private test modules import expecttest: pip install expecttest" in done.stderr
    assert "Warning" not in done.stderr


def test_help_prints_the_usage(project: Project) -> None:
    done = report(project, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith("usage: everyrank adopt-report [PATH ...]")


def test_tests_that_are_not_adopted_run_as_without_the_option(project: Project) -> None:
    project.write(
        "test_theirs.py",
        """
        from torch.testing._internal.common_distributed import MultiProcessTestCase
        from torch.testing._internal.common_utils import TestCase

        class Single(TestCase):
            def test_single(self): self.assertEqual(1, 1)

        class NoDevices(MultiProcessTestCase):
            world_size = 0
            def test_nobody(self): self.fail("nobody")
        """,
    )
    inner = project.run("--adopt")
    assert inner.outcomes() == {"test_single": "passed", "test_nobody": "skipped"}
    assert "its world_size is 0 on this machine" in inner["NoDevices::test_nobody"].text
    assert (
        "adopted 0 tests of torch's classes, left 1 as they are (everyrank adopt-report lists the reasons)"
        in inner.out
    )
