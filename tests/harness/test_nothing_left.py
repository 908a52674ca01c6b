"""However a run ends, no process and no folder of it is left."""

from __future__ import annotations

import json
import os
import select
import signal
import time
from pathlib import Path

import pytest

from tests.engines import elsewhere
from tests.forked import ForkServers
from tests.inner import Inner, Project

SOURCE = """
    import json, os, pathlib, signal, subprocess, threading
    import pytest, torch
    import torch.distributed as dist

    UP = pathlib.Path(__file__).parent / "up"

    def say(world, **what):
        part = UP / f"part-{world.rank}"
        part.write_text(json.dumps(what))
        part.rename(UP / f"rank-{world.rank}")

    @pytest.mark.world(2)
    def test_before(process_group):
        dist.barrier()

    @pytest.mark.world(2)
    def test_held_up(process_group, world):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if world.rank == 0:
            child = subprocess.Popen(["sleep", "1000"], start_new_session=True).pid
        else:
            child = os.fork()
            if child == 0:
                os.setsid()
                threading.Event().wait()
        pathlib.Path(world.folder, "a file").write_text("of a rank's")
        say(world, keeper=os.getsid(0), child=child)  # it leads the session
        threading.Event().wait()

    @pytest.mark.world(2)
    def test_after(process_group):
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == 2

    def test_on_one_process():
        pass
"""

LAUNCHERS = ["fork", elsewhere("spawn")]


class HeldUp:
    """An inner run whose ranks wait for ever, and have children in separate sessions."""

    def __init__(self, project: Project, *arguments: str) -> None:
        self.project = project
        project.write("test_inner.py", SOURCE)
        up = project.folder / "up"
        up.mkdir()
        self.process = project.start(*arguments)
        until = time.monotonic() + 120
        while len(list(up.glob("rank-*"))) < 2:
            if self.process.poll() is not None or time.monotonic() > until:
                self.process.kill()
                raise AssertionError(self.process.communicate()[0])
            time.sleep(0.01)
        notes = [json.loads((up / f"rank-{rank}").read_text()) for rank in range(2)]
        self.keeper: int = notes[0]["keeper"]
        self.children: list[int] = [note["child"] for note in notes]
        assert {*self.children, self.keeper, self.process.pid} <= set(project.processes())

    @property
    def controller(self) -> int:
        """Return the pytest process that owns the world; under xdist, a worker."""
        return int(Path(f"/proc/{self.keeper}/stat").read_text().rpartition(")")[2].split()[1])

    def end(self, number: int) -> str:
        """Send pytest a signal, and return what it printed."""
        self.process.send_signal(number)
        out, _ = self.process.communicate(timeout=120)
        self.project.assert_nothing_left()
        return out


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_ctrl_c_ends_the_world_and_all_it_started(project: Project, launcher: str) -> None:
    held_up = HeldUp(project, "--launcher", launcher)
    out = held_up.end(signal.SIGINT)
    assert held_up.process.returncode == pytest.ExitCode.INTERRUPTED
    assert "KeyboardInterrupt" in out
    assert "INTERNALERROR" not in out


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_killed_pytest_leaves_nothing(project: Project, launcher: str, number: signal.Signals) -> None:
    held_up = HeldUp(project, "--launcher", launcher)
    held_up.end(number)
    expected = pytest.ExitCode.INTERRUPTED if number == signal.SIGTERM else -number
    assert held_up.process.returncode == expected


#: Notes the signal by which execnet ends the test of a worker whose controller is gone, when it has waited enough.
NOTES_INTERRUPTS = """
    import pathlib, signal

    def note(number, frame):
        (pathlib.Path(__file__).parent / "interrupted").touch()
        raise KeyboardInterrupt

    def pytest_collection_finish(session):
        signal.signal(signal.SIGINT, note)
"""


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_an_xdist_worker_does_not_wait_for_its_world_when_its_controller_was_killed(
    project: Project, launcher: str
) -> None:
    project.write("conftest.py", NOTES_INTERRUPTS)
    held_up = HeldUp(project, "-n", "1", "--launcher", launcher)
    worker, keeper = os.pidfd_open(held_up.controller), os.pidfd_open(held_up.keeper)
    held_up.process.kill()
    _wait_for_end(worker, keeper)
    held_up.end(signal.SIGKILL)
    assert not (project.folder / "interrupted").exists()


def test_an_xdist_worker_does_not_wait_for_a_single_process_test_when_its_controller_was_killed(
    project: Project,
) -> None:
    project.write("conftest.py", NOTES_INTERRUPTS)
    project.write(
        "test_inner.py",
        """
        import os, pathlib, threading

        def test_before(world):
            world.barrier()

        def test_sleeps():
            part = pathlib.Path(__file__).parent / "part"
            part.write_text(str(os.getpid()))
            part.rename(part.with_name("worker"))
            threading.Event().wait()
        """,
    )
    process = project.start("-n", "1")
    pid = project.folder / "worker"
    while not pid.exists():
        assert process.poll() is None, process.communicate()[0]
        os.sched_yield()
    worker = os.pidfd_open(int(pid.read_text()))
    process.kill()
    _wait_for_end(worker)
    process.communicate()
    project.assert_nothing_left()
    assert not (project.folder / "interrupted").exists()


def _wait_for_end(*pidfds: int) -> None:
    for fd in pidfds:
        assert select.select([fd], [], [], 120)[0]
        os.close(fd)


@pytest.fixture(scope="module")
def worker_killed(module_project: Project) -> Inner:
    held_up = HeldUp(module_project, "-n", "1")
    worker = held_up.controller
    assert worker != held_up.process.pid
    os.kill(worker, signal.SIGKILL)
    return module_project.finish(held_up.process)


def test_a_killed_xdist_worker_fails_the_test_that_it_ran(worker_killed: Inner) -> None:
    assert "crashed while running" in worker_killed["test_held_up"].text


def test_after_a_killed_xdist_worker_the_other_tests_run(worker_killed: Inner) -> None:
    assert worker_killed["test_after"].outcome == "passed"
    assert worker_killed["test_on_one_process"].outcome == "passed"


@pytest.fixture(scope="module", params=LAUNCHERS)
def keeper_killed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, fork_servers: ForkServers
) -> Inner:
    project = Project(tmp_path_factory.mktemp("project"), fork_servers)
    project.forks_keeper = True
    held_up = HeldUp(project, "--launcher", request.param)
    os.kill(held_up.keeper, signal.SIGKILL)
    return project.finish(held_up.process)


def test_a_killed_zygote_fails_the_running_test_by_name(keeper_killed: Inner) -> None:
    result = keeper_killed["test_held_up"]
    assert result.outcome == "failed"
    assert "was killed by SIGKILL, and all ranks with it" in result.text
    assert "the zygote" in result.text or "the keeper of the ranks" in result.text


def test_after_a_killed_zygote_tests_run_on_spawned_worlds(keeper_killed: Inner) -> None:
    assert keeper_killed["test_before"].outcome == "passed"
    assert keeper_killed["test_after"].outcome == "passed", keeper_killed["test_after"].text
    texts = [warning["text"] for warning in keeper_killed.warnings if "further worlds are spawned" in warning["text"]]
    assert len(texts) == 1
    assert "launcher was killed by SIGKILL" in texts[0]


def test_a_zygote_killed_between_two_tests_fails_neither(project: Project) -> None:
    project.forks_keeper = True
    project.write(
        "test_inner.py",
        """
        import os, pathlib, signal
        import pytest

        NOTED = pathlib.Path(__file__).parent / "keeper"

        @pytest.mark.world(2)
        def test_before(world):
            NOTED.write_text(str(os.getppid()))

        def test_kills_the_zygote():
            os.kill(int(NOTED.read_text()), signal.SIGKILL)

        @pytest.mark.world(2, fresh=True)
        def test_fresh(world):
            assert world.all_agree(1) is None

        @pytest.mark.world(2)
        def test_after(world):
            world.barrier()
        """,
    )
    inner = project.run()
    assert set(inner.outcomes().values()) == {"passed"}, inner.out


@pytest.fixture(scope="module")
def listening(tmp_path_factory: pytest.TempPathFactory, fork_servers: ForkServers) -> Inner:
    project = Project(tmp_path_factory.mktemp("project"), fork_servers)
    project.write(
        "test_inner.py",
        """
        import os, stat
        import pytest, torch
        import torch.distributed as dist
        import torch.distributed.rpc as rpc

        def listeners():
            mine = {os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if here(fd)}
            found = []
            for name in ("tcp", "tcp6"):
                with open(f"/proc/self/net/{name}") as file:
                    for line in list(file)[1:]:
                        words = line.split()
                        if words[3] == "0A" and f"socket:[{words[9]}]" in mine:
                            found.append(words[1].rpartition(":")[0])
            return found

        def here(fd):
            return os.path.lexists(f"/proc/self/fd/{fd}")

        LOOPBACK = {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}

        @pytest.mark.world(2)
        def test_process_group(process_group):
            dist.barrier()
            assert listeners()
            assert set(listeners()) <= LOOPBACK

        @pytest.mark.world(2)
        def test_rpc_agent(rpc_agent, world):
            rpc.rpc_sync(rpc_agent.names[1 - world.rank], torch.add, args=(torch.ones(1), 1))
            assert listeners()
            assert set(listeners()) <= LOOPBACK

        @pytest.mark.world(2)
        @pytest.mark.rpc(transports="all")
        def test_rpc_agent_with_all_transports(rpc_agent, world):
            rpc.rpc_sync(rpc_agent.names[1 - world.rank], torch.add, args=(torch.ones(1), 1))
            assert set(listeners()) <= LOOPBACK

        @pytest.mark.world(2)
        def test_own_group(world):
            dist.init_process_group("gloo", init_method=world.init_method, rank=world.rank, world_size=world.size)
            dist.barrier()
            assert set(listeners()) <= LOOPBACK
            dist.destroy_process_group()

        @pytest.mark.world(2)
        def test_folders(world):
            os.umask(0)
            for folder in (world.folder, os.path.dirname(world.folder)):
                assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
                assert os.stat(folder).st_uid == os.getuid()

        @pytest.mark.world(2)
        def test_no_listener_without_a_group(world):
            assert listeners() == []
        """,
    )
    return project.run()


@pytest.mark.parametrize(
    "test",
    ["test_process_group", "test_rpc_agent", "test_rpc_agent_with_all_transports", "test_own_group"],
)
def test_ranks_listen_on_loopback_only(listening: Inner, test: str) -> None:
    assert listening[test].outcome == "passed", listening[test].text


def test_the_folders_of_a_run_are_their_owners_only(listening: Inner) -> None:
    assert listening["test_folders"].outcome == "passed", listening["test_folders"].text


def test_the_harness_itself_listens_nowhere(listening: Inner) -> None:
    assert listening["test_no_listener_without_a_group"].outcome == "passed"


@pytest.mark.parametrize(("number", "words"), [("ENOSPC", "No space left"), ("EACCES", "Permission denied")])
def test_without_room_in_the_temp_folder_the_run_reports_it(project: Project, number: str, words: str) -> None:
    project.write(
        "conftest.py",
        f"""
        import errno, os, tempfile

        def no_room(*args, **kwargs):
            raise OSError(errno.{number}, os.strerror(errno.{number}))

        def pytest_collection_finish():
            tempfile.mkdtemp = no_room
        """,
    )
    project.write("test_inner.py", "def test_one(world): pass\n")
    inner = project.run()
    assert inner.code == pytest.ExitCode.USAGE_ERROR
    assert f"cannot make a folder for this run in the temp folder {project.temp}: {words}" in inner.out
    assert "Traceback" not in inner.out


def test_a_temp_folder_that_goes_away_fails_the_tests_that_need_it_and_no_others(project: Project) -> None:
    project.write(
        "test_inner.py",
        """
        import os, shutil, tempfile
        import pytest

        def test_takes_it_away():
            shutil.rmtree(tempfile.gettempdir())

        @pytest.mark.world(2, fresh=True)
        def test_needs_it(world):
            world.barrier()

        def test_brings_it_back():
            os.makedirs(tempfile.gettempdir(), mode=0o700)

        @pytest.mark.world(2, fresh=True)
        def test_has_it(world):
            assert os.listdir(world.folder) == []
            world.barrier()
        """,
    )
    inner = project.run()
    assert inner["test_needs_it"].outcome == "error"
    assert "the world could not be started: [Errno 2] No such file or directory" in inner["test_needs_it"].text
    assert inner["test_has_it"].outcome == "passed", inner["test_has_it"].text
