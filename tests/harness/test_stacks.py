"""``everyrank stacks PID`` shows from outside what the ranks of a running test are doing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import pytest
from everyrank.rollcall.running import Run, describe

from tests.engines import elsewhere
from tests.inner import Project

TESTS = """\
import os
import pytest
import torch
import torch.distributed as dist


@pytest.mark.world(2)
def test_is_kept(world):
    pass


@pytest.mark.world(3)
def test_waits(process_group, world):
    world.barrier()
    if world.rank == 1:
        with open(os.environ["EVERYRANK_TEST_FIFO"], "w") as fifo:
            fifo.write(f"{os.getpid()}\\n")
        open(os.environ["EVERYRANK_TEST_GO"]).read()  # alone
    dist.all_reduce(torch.ones(1))  # together
"""


def line(comment: str) -> int:
    return next(number for number, text in enumerate(TESTS.splitlines(), 1) if text.endswith(f"# {comment}"))


def stacks(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "everyrank", "stacks", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )


@dataclass
class Running:
    """A run that stands still until the test lets it continue."""

    project: Project
    process: Any
    rank: int  # the pid of rank 1, which stands still

    def end(self) -> Any:
        with open(self.project.folder / "go", "w"):
            pass
        return self.project.finish(self.process)


def start(project: Project, *arguments: str) -> Running:
    """Start a run, and return when rank 1 of its world stands still."""
    project.write("test_inner.py", TESTS)
    os.mkfifo(project.folder / "notice")
    os.mkfifo(project.folder / "go")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EVERYRANK_TEST_FIFO", str(project.folder / "notice"))
        patch.setenv("EVERYRANK_TEST_GO", str(project.folder / "go"))
        process = project.start(*arguments)
    with open(project.folder / "notice") as fifo:
        return Running(project, process, int(fifo.readline()))


@pytest.fixture(scope="module")
def run(module_project: Project) -> Iterator[Running]:
    """A run with a world that is kept, and one that waits. However often it is asked, it continues unharmed."""
    run = start(module_project)
    yield run
    inner = run.end()
    assert inner.outcomes() == {"test_is_kept": "passed", "test_waits": "passed"}
    assert inner.warnings == []


def assert_stacks(text: str) -> None:
    head, *rest = text[text.index("world of 3 ranks") :].splitlines()
    assert head.startswith("world of 3 ranks, pytest process ")
    assert head.endswith(", in test_waits (test_inner.py)")
    assert rest[0].startswith("rank 1 is in test_waits at test_inner.py:" + str(line("alone")))
    assert rest[1].startswith("ranks 0,2 are waiting in all_reduce at test_inner.py:" + str(line("together")))
    assert "ranks 0,2, innermost frame first:" in text


def test_stacks_of_a_pytest_process_shows_all_its_ranks(run: Running) -> None:
    """A world that is kept for another test has one line. C frames are shown where they are asked for."""
    native = ["--native"] if find_spec("pystack") else []
    done = stacks(run.process.pid, *native)
    assert done.returncode == 0, done.stderr
    assert_stacks(done.stdout)
    assert f"world of 3 ranks, pytest process {run.process.pid}," in done.stdout
    assert f"world of 2 ranks, pytest process {run.process.pid}: idle, kept for another test\n" in done.stdout
    assert ("native frames of rank 0:" in done.stdout) == bool(native)


def test_stacks_of_a_rank_shows_its_own_world(run: Running) -> None:
    for _ in range(2):
        done = stacks(run.rank)
        assert done.stdout.count("world of") == 1
        assert_stacks(done.stdout)


def test_without_a_pid_it_lists_what_runs(run: Running) -> None:
    lines = stacks().stdout.splitlines()
    (index,) = [index for index, text in enumerate(lines) if text.startswith(f"pytest {run.process.pid}, for ")]
    assert f" s, in {run.project.folder}: " in lines[index]
    text = r"    has worlds of (2 and 3|3 and 2) ranks, for \d+ s in test_inner\.py::test_waits"
    assert re.fullmatch(text, lines[index + 1])


@pytest.mark.parametrize("options", [elsewhere(["--launcher=spawn"]), ["-n", "1"]], ids=" ".join)
def test_stacks_of_a_run_of_another_kind_are_the_same(project: Project, options: list[str]) -> None:
    run = start(project, "-k", "waits", *options)
    done = stacks(run.process.pid)
    assert done.returncode == 0, done.stderr
    assert_stacks(done.stdout)
    assert run.end()["test_waits"].outcome == "passed"


def test_nothing_that_runs_is_one_line() -> None:
    assert describe([]) == "no multi-rank test runs on this machine, as far as you may see its processes"


def test_a_run_between_two_tests_has_worlds_and_no_test() -> None:
    described = describe([Run(4711, "pytest tests/", "/home/me", (2, 4), time.time() - 90, None)])
    assert described.splitlines()[:2] == [
        "pytest 4711, for 90 s, in /home/me: pytest tests/",
        "    has worlds of 2 and 4 ranks",
    ]


def test_the_roll_call_of_a_missed_deadline_has_c_frames(project: Project) -> None:
    pytest.importorskip("pystack")
    project.native = True
    project.write(
        "test_inner.py",
        """
        import threading
        import pytest

        @pytest.mark.world(1, timeout=1)
        def test_waits(world):
            threading.Event().wait()
        """,
    )
    assert re.search(r"native frames of rank 0:\n    \S", project.run()["test_waits"].text)


def test_on_request_a_rank_that_crashes_shows_its_c_frames_and_dies_by_its_signal(project: Project) -> None:
    pytest.importorskip("pystack")
    if not __file__.isascii():
        pytest.skip("pystack reads no stack with the path of a file that is not ASCII")
    project.native = True
    project.write(
        "test_inner.py",
        """
        import ctypes, os, signal
        import pytest

        @pytest.mark.world(1)
        @pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT", "SIGFPE"])
        def test_crashes(world, name):
            if name == "SIGSEGV":
                ctypes.string_at(0)
            elif name == "SIGABRT":
                os.abort()
            else:
                os.kill(os.getpid(), signal.SIGFPE)  # no fault that comes again
        """,
    )
    inner = project.run("--death-stacks", "--run-file", "run.jsonl")
    names = {"SIGSEGV": "string_at", "SIGABRT": "abort", "SIGFPE": "kill"}
    for name, function in names.items():
        text = inner[f"test_crashes[{name}]"].text
        assert text.startswith(f"rank 0 of 1 was killed by {name} in call"), text
        assert re.search(rf"C frames of the main thread, innermost first:\n(  .*\n)*?  \w*{function} ", text), text
        assert "sleep" not in text
    assert (project.folder / "run.jsonl").read_text().count("C frames of the main thread") >= 3


def test_without_pystack_the_request_is_answered_once(project: Project) -> None:
    project.write("conftest.py", "from everyrank.launch import native\n\nnative.reader_path = lambda: ''\n")
    project.write("test_inner.py", "import pytest\n\n@pytest.mark.world(1)\ndef test_it(world): pass\n")
    inner = project.run("--death-stacks")
    assert [warning["text"] for warning in inner.warnings] == [
        "everyrank: --death-stacks needs ranks on this host, and pystack: pip install pystack"
    ]


def test_a_process_without_ranks_gives_one_line() -> None:
    # Not this process: an earlier test of this worker may have left a warm world below it.
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as other:
        done = stacks(other.pid)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"everyrank: process {other.pid} is not a rank of everyrank, and has no rank below it\n"


def test_a_process_that_is_gone_gives_one_line() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    done = stacks(gone.pid)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"everyrank: there is no process {gone.pid}\n"


def test_what_is_no_number_is_refused() -> None:
    done = stacks("pytest")
    assert done.returncode == 2
    assert "invalid int value: 'pytest'" in done.stderr
