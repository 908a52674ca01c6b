"""Limits of the system, and what a shell may leave unusual: the run works, or says in a sentence what to do."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import resource
import select
import selectors
import signal
import socket
import subprocess
from pathlib import Path

import msgspec
import pytest
from everyrank.errors import MisuseError
from everyrank.launch import limits, local, succession
from everyrank.launch.keeper import Keeper, control_channel
from everyrank.launch.limits import advice
from everyrank.launch.local import LocalLauncher
from everyrank.launch.protocol import Shape
from everyrank.launch.succession import Succession
from everyrank.wire.channel import Channel
from everyrank.wire.keepers import Preload, Preloaded, Started, StartRank, ToKeeper, Unsafe

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


def test_a_world_that_waits_for_imports_for_long_reports_who_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_MUTE", 0.0)
    monkeypatch.setattr(local, "_GIVES_UP", 0.0)
    ours, theirs = socket.socketpair()
    stopped = subprocess.Popen(["sleep", "1000"])
    os.kill(stopped.pid, signal.SIGSTOP)
    keeper: Channel[ToKeeper] = Channel(theirs, ToKeeper)
    launcher = LocalLauncher("spawn", os.getpid(), ours, live=False, folder="")
    reported: list[str] = []

    def report(text: str) -> None:
        reported.append(text)
        keeper.send(Preloaded())

    launcher.report = report
    launcher.preload(Preload(["torch"], 1.0))
    launcher.settle()
    stopped.kill()
    stopped.wait()
    keeper.close()
    ours.close()
    assert len(reported) == 1
    (text,) = reported
    assert text.startswith("a world waits until ")
    assert f"process {stopped.pid}, which is stopped," in text
    assert text.endswith(" imported modules for its ranks")


def test_a_successor_that_does_not_fork_a_rank_is_ended_and_the_keeper_starts_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may be stopped: the rank's test would wait for it as long as worlds may take to start."""
    monkeypatch.setattr(succession, "_FORKS", 0.05)
    with selectors.DefaultSelector() as selector, contextlib.ExitStack() as opened:
        reported: list[msgspec.Struct] = []
        found = Succession(selector, reported.append)
        ends: list[Channel[ToKeeper]] = []

        def fork(names: list[str], fd: int) -> int:
            ends.append(Channel(opened.enter_context(socket.socket(fileno=os.dup(fd))), ToKeeper))
            return os.getpid()

        found.begin(Preload(["torch"], 100.0), fork)
        ends[0].send(Unsafe(""))
        assert found.hear()
        assert found.patience(None) is None
        fds = [[os.open(os.devnull, os.O_RDONLY)] for _ in range(2)]
        assert [found.start(StartRank(number), fds[number]) for number in range(2)] == [True, True]
        assert found.patience(None) is not None
        ends[0].send(Started(0, 4711))
        assert found.hear()
        while not found.is_overdue():
            left = found.patience(None)
            assert left is not None, "it may take for ever"
            selector.select(left)
        assert found.ended() == ({0: 4711}, {1: fds[1]})
        assert not found.is_overdue()
        os.close(fds[1][0])


def test_a_world_of_more_ranks_than_there_can_be_is_refused_before_it_holds_a_slot(project: Project) -> None:
    project.write(
        "test_inner.py",
        """
        import pytest
        from everyrank.resources.leases import Leases

        def held(*_):
            raise AssertionError("a slot")

        Leases.held = held

        @pytest.mark.world(10**9)
        def test_huge(world): pass
        """,
    )
    inner = project.run()
    inner.check("test_huge", "error", "a world of 1000000000 ranks can never be started: for each rank this process ")
    assert re.search(r"it may have (\d+) \(ulimit -n\): \d+ ranks at the most", inner["test_huge"].text)


def test_a_world_of_more_ranks_than_processes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits.resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    with pytest.raises(MisuseError, match=r"this machine may have \d+ processes"):
        limits.check(10**9, 5)
    limits.check(100, 5)


def test_a_run_forks_its_ranks_without_stdin(project: Project) -> None:
    project.write("test_inner.py", "import pytest\n\n@pytest.mark.world(2)\ndef test_it(world): pass\n")
    (project.folder / "reports.jsonl").write_text("")
    command = ["sh", "-c", 'exec "$@" <&-', "sh", *project.command()]
    inner = project.finish(project.spawn(command, project.environment()))
    assert inner["test_it"].outcome == "passed", inner.out
    assert inner.warnings == []


def test_a_zygote_that_cannot_be_prepared_reports_why(project: Project) -> None:
    project.write(
        "conftest.py",
        """
        from everyrank.controller import launch_context

        def fails(session):
            raise LookupError("no zygote today")

        launch_context.prepare_ranks = fails
        """,
    )
    project.write("test_inner.py", "import pytest\n\n@pytest.mark.world(2)\ndef test_it(world): pass\n")
    inner = project.run()
    assert inner["test_it"].outcome == "passed", inner.out
    assert [warning["text"] for warning in inner.warnings] == [
        "everyrank: --launcher=fork is not possible: LookupError: no zygote today. "
        "Worlds are spawned instead, more slowly."
    ]


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
