"""Limits of the system, and what a shell may leave unusual: the run works, or says in a sentence what to do."""

from __future__ import annotations

import errno
import os
import select
import socket
from pathlib import Path

import pytest
from everyrank.launch.keeper import Keeper, control_channel
from everyrank.launch.limits import advice
from everyrank.launch.local import LocalLauncher
from everyrank.launch.protocol import Shape

from tests.inner import Inner, Project


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.EMFILE, "ulimit -n"),
        (
            errno.EAGAIN,
            "a fork was refused: this user or container has as many processes as it may. Raise ",
        ),
        (errno.ENOMEM, "there is no memory left: use smaller worlds"),
        (errno.ENOSPC, "No space left on device"),
    ],
)
def test_an_error_of_the_system_names_a_remedy(number: int, expected: str) -> None:
    assert expected in advice(OSError(number, os.strerror(number)))


def test_a_rank_whose_fork_is_refused_is_reported_and_the_keeper_goes_on(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    parent = os.getpid()
    (tmp_path / "run").mkdir()
    pid = os.fork()
    if pid == 0:
        ours.close()
        allowed = [False, True]

        def start(fds: list[int]) -> int:
            if not allowed.pop(0):
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            rank = os.fork()
            if rank == 0:
                os._exit(5)
            return rank

        try:
            Keeper(control_channel(theirs.detach()), parent, str(tmp_path / "run")).serve(start)
        finally:
            os._exit(0)
    theirs.close()
    launcher = LocalLauncher("fork", pid, ours, live=False, folder=str(tmp_path / "run"), forks=True)
    assert launcher.handshake() == ""
    refused, started = launcher.start(Shape(2))
    while not (refused.gone and started.gone):
        select.select([launcher], [], [], 30)
        launcher.catch_up()
    launcher.close()
    for seat in (refused, started):
        seat.close()
    assert refused.lost.startswith("could not be started: a fork was refused: ")
    assert started.status == 5 << 8


SOURCE = """
    import os, resource
    import pytest

    SOFT, HARD = resource.getrlimit(resource.RLIMIT_NOFILE)

    @pytest.mark.world(2)
    def test_first(world): pass

    def test_lowers_the_limit():
        used = [int(fd) for fd in os.listdir("/proc/self/fd")]
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(used) + 3, HARD))

    @pytest.mark.world(3, fresh=True)
    def test_needs_more(world): pass

    def test_raises_the_limit():
        resource.setrlimit(resource.RLIMIT_NOFILE, (SOFT, HARD))

    @pytest.mark.world(3, fresh=True)
    def test_last(world): pass
"""

#: As ``pytest -s <&-`` and ``trap "" CHLD`` leave the process.
UNUSUAL = """
    import os, signal

    if os.environ.setdefault("INNER_PID", str(os.getpid())) == str(os.getpid()):  # a spawned rank imports it, too
        os.close(0)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
"""


@pytest.fixture(scope="module", params=["fork", "spawn"])
def inner(request: pytest.FixtureRequest, module_project: Project) -> Inner:
    module_project.write("conftest.py", UNUSUAL)
    module_project.write("test_inner.py", SOURCE)
    return module_project.run("-s", f"--launcher={request.param}")


def test_a_run_works_without_stdin_and_where_ends_of_children_were_ignored(inner: Inner) -> None:
    assert inner["test_first"].outcome == "passed", inner.out
    assert inner["test_last"].outcome == "passed", inner.out
    assert inner.code == pytest.ExitCode.TESTS_FAILED


def test_without_file_descriptors_a_test_reports_the_limit_and_the_next_one_runs(inner: Inner) -> None:
    assert inner["test_needs_more"].outcome == "error"
    assert "the world could not be started: this process has no file descriptor left" in inner["test_needs_more"].text
