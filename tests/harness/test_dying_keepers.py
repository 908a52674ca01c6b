"""Keepers that die at their start, or say nothing: each wait for them has a limit, and a sentence."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from everyrank.errors import MisuseError
from everyrank.launch import local, orphans, remote
from everyrank.launch.local import LocalLauncher
from everyrank.launch.protocol import CannotLaunch, Shape
from everyrank.launch.remote.door import RANK, Door, knock
from everyrank.launch.remote.keeper import CONTROLLER_GONE, Invitation, RemoteKeeper
from everyrank.launch.remote.launcher import RemoteLauncher
from everyrank.launch.remote.link import Link, RankChannel, RemoteSeat, introduced
from everyrank.launch.remote.ray import RayLauncher
from everyrank.launch.remote.run_folder import RunFolder, mark
from everyrank.model.run_mark import RUN_VARIABLE, run_mark
from everyrank.wire.channel import Channel
from everyrank.wire.keepers import NotStarted, ToKeeper, Unsafe
from everyrank.wire.remote import FromRemoteKeeper, LostRanks, Port, Ready, StartSeat, ToRemoteKeeper

from tests.engines import by_hand
from tests.inner import Project


class Started(LocalLauncher):
    """A launcher whose keeper is a fork of this process, which dies, waits in silence, or is ready."""

    def __init__(self, folder: Path, behaviour: str) -> None:
        folder.mkdir()
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            ours.close()
            if behaviour == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            channel: Channel[Any] = Channel(theirs, ToKeeper)
            if behaviour == "is ready":
                channel.send(Unsafe(""))
            theirs.recv(1)  # until the other side is closed, or sends the order to close
            os._exit(0)
        theirs.close()
        super().__init__("fork", pid, ours, live=False, folder=str(folder), forks=True)
        self.handshake()


def test_a_keeper_that_does_not_answer_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_START", 0.05)
    launcher = Started(tmp_path / "run", "is silent")
    assert launcher.lost == "did not start within 0.05 s"
    with pytest.raises(ProcessLookupError):
        os.kill(launcher.keeper, 0)
    assert not Path(launcher.folder).exists()


# --- remote keepers ------------------------------------------------------------------------------------------


def test_a_keeper_that_was_let_in_and_ends_is_named() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    with (
        ours,
        pytest.raises(MisuseError, match=r"^Ray's actor 3 ended before the first test: its own output says why"),
    ):
        introduced("Ray's actor 3", ours)


def test_a_keeper_that_was_let_in_and_is_silent_is_named() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(MisuseError, match=r"^Ray's actor 3 did not introduce itself within 0.01 s: "):
        introduced("Ray's actor 3", ours, within=0.01)


@pytest.fixture
def run_folder(tmp_path: Path) -> RunFolder:
    (tmp_path / "controllers").mkdir()
    mark(str(tmp_path / "controllers"), b"secret")
    return RunFolder(str(tmp_path / "controllers"), b"secret")


def test_a_remote_keeper_reports_why_it_cannot_keep_ranks(tmp_path: Path, run_folder: RunFolder) -> None:
    ours, theirs = socket.socketpair()
    control: Channel[Any] = Channel(theirs, ToRemoteKeeper)
    invitation = Invitation(("127.0.0.1", 1), b"secret", run_folder.path)
    with ours, theirs, pytest.raises(CannotLaunch, match=r"^its zygote was killed by SIGKILL at its start"):
        RemoteKeeper(control, invitation, run_folder, lambda: Started(tmp_path / "own", "dies"))


def test_ranks_are_not_started_if_a_keeper_and_all_that_replace_it_die(tmp_path: Path, run_folder: RunFolder) -> None:
    ours, theirs = socket.socketpair()
    controllers: Channel[Any] = Channel(ours, FromRemoteKeeper)
    control: Channel[Any] = Channel(theirs, ToRemoteKeeper)
    launchers: list[Started] = []

    def launch() -> LocalLauncher:
        folder = tmp_path / f"own-{len(launchers)}"
        launchers.append(Started(folder, "dies" if launchers else "is ready"))
        return launchers[-1]

    keeper = RemoteKeeper(control, Invitation(("127.0.0.1", 1), b"secret", run_folder.path), run_folder, launch)
    ready = Ready("host", "node", "boot", 0.0, {}, {}, "", "", "")
    serving = threading.Thread(target=keeper.serve, args=(ready,), daemon=True)
    serving.start()
    assert isinstance(controllers.receive(), Ready)
    os.kill(launchers[0].keeper, signal.SIGKILL)
    assert controllers.receive() == LostRanks("its zygote was killed by SIGKILL", [])
    for number in (7, 8):
        controllers.send(StartSeat(number, "name", live=False))
        reason = "its zygote was killed by SIGKILL at its start, and its own output says why"
        assert controllers.receive() == NotStarted(number, reason)
    ours.close()
    serving.join(30)
    theirs.close()
    assert not serving.is_alive()


def test_a_rank_that_was_ordered_after_its_keeper_had_died_is_not_lost_with_it() -> None:
    ours, theirs = socket.socketpair()
    keeper: Channel[Any] = Channel(theirs, ToRemoteKeeper)
    ready = Ready("host", "node", "boot", 0.0, {}, {}, "", "", "")
    link = Link("process 1", Channel(ours, FromRemoteKeeper), ready, "boot")
    launcher = RemoteLauncher("torchrun", "", Door("127.0.0.1", b"secret"), [link], live=False, forks=True)
    ranks = [socket.socketpair() for _ in range(2)]
    seats = [RemoteSeat(7 + index, RankChannel(pair[0], 0.0), link, {}) for index, pair in enumerate(ranks)]
    launcher._seats.update({seat.number: seat for seat in seats})
    # The controller ordered rank 8 before it had read that the ranks before were lost.
    keeper.send(LostRanks("its zygote was killed by SIGKILL", [7]))
    assert list(launcher.events()) == [seats[0]]
    assert [(seat.gone, seat.lost) for seat in seats] == [
        (True, "its zygote was killed by SIGKILL (on process 1)"),
        (False, ""),
    ]
    launcher.say_goodbye(0)
    for sock in [ours, theirs, *(end for pair in ranks for end in pair)]:
        sock.close()


def test_a_keeper_that_dies_once_it_has_reserved_a_port_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:
        theirs = socket.create_connection(door.getsockname())
        ours, _ = door.accept()
    ready = Ready("host", "node", "boot", 0.0, {}, {}, "", "", "")
    link = Link("Ray's actor 0", Channel(ours, FromRemoteKeeper), ready, "boot")
    launcher = RemoteLauncher("ray", "", Door("127.0.0.1", b"secret"), [link], live=False, forks=True)
    rank, its_own = socket.socketpair()
    seat = RemoteSeat(7, RankChannel(rank, 0.0), link, {})

    def answer_and_die(question: Any, kind: type[Port]) -> Port:
        theirs.setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )  # as the kernel does to the dead
        theirs.close()
        return Port(question.request, 4711)

    monkeypatch.setattr(link, "ask", answer_and_die)
    with launcher.hosts.rendezvous(seat) as address:
        assert address == ("", 0)
    assert link.lost == "Ray's actor 0 is gone"
    launcher.say_goodbye(0)
    for sock in (ours, rank, its_own):
        sock.close()


class Keepers:
    """A launcher with two keepers, each of which does as it is told with its order to start a rank."""

    def __init__(self, *behaviours: Callable[[Keepers, Channel[Any], StartSeat], object]) -> None:
        door = Door("127.0.0.1", b"secret")
        self.address = door.address
        self.links: list[Link] = []
        self.threads: list[threading.Thread] = []
        for number, behaviour in enumerate(behaviours):
            ours, theirs = socket.socketpair()
            ready = Ready("host", "node", "boot", 0.0, {}, {}, "", "", "")
            self.links.append(Link(f"process {number}", Channel(ours, FromRemoteKeeper), ready, "boot"))
            self.threads.append(threading.Thread(target=self._obey, args=(theirs, behaviour), daemon=True))
        self.launcher = RemoteLauncher("torchrun", "", door, self.links, live=False, forks=True)

    def _obey(self, sock: socket.socket, behaviour: Callable[[Keepers, Channel[Any], StartSeat], object]) -> None:
        with sock:
            channel: Channel[Any] = Channel(sock, ToRemoteKeeper)
            order = channel.receive()
            assert isinstance(order, StartSeat)
            behaviour(self, channel, order)

    def start_rank(self, channel: Channel[Any], order: StartSeat) -> None:
        with knock(self.address, b"secret", (RANK, order.number)):
            channel.read_to_end(60)

    def start_rank_late(self, channel: Channel[Any], order: StartSeat) -> None:
        """Start a rank once the controller knows of the other keeper that it is gone."""
        until = time.monotonic() + 60
        while not self.links[1].lost and time.monotonic() < until:
            time.sleep(0.01)
        self.start_rank(channel, order)

    def refuse(self, channel: Channel[Any], order: StartSeat) -> None:
        channel.send(NotStarted(order.number, "no process is left"))
        channel.read_to_end(60)

    def die(self, channel: Channel[Any], order: StartSeat) -> None:
        """Die between the order and the rank's connection."""

    def end(self) -> None:
        self.launcher.say_goodbye(0)
        for link in self.links:
            link.channel.close()
        for thread in self.threads:
            thread.join(60)
            assert not thread.is_alive()


@pytest.mark.parametrize(
    ("first", "second", "reason", "lost"),
    [
        (Keepers.start_rank, Keepers.die, "process 1 is gone", "process 1 is gone"),
        (Keepers.start_rank_late, Keepers.die, "process 1 is gone", "process 1 is gone"),
        (Keepers.start_rank, Keepers.refuse, "process 1 could not start it: no process is left", ""),
    ],
    ids=["gone", "gone before the other started its rank", "refuses"],
)
def test_nobody_waits_for_the_rank_of_a_keeper_that_cannot_start_it(
    first: Any, second: Any, reason: str, lost: str
) -> None:
    keepers = Keepers(first, second)
    for thread in keepers.threads:
        thread.start()
    seats = keepers.launcher.start(Shape(2))
    assert seats[1] in list(keepers.launcher.events())
    assert [(seat.gone, seat.lost) for seat in seats] == [(False, ""), (True, reason)]
    assert [link.lost for link in keepers.links] == ["", lost]
    for seat in seats:
        seat.close()
    keepers.end()


@pytest.mark.parametrize("dead", [0, 1, 2])
def test_an_actor_of_ray_that_died_between_two_tests_is_replaced(dead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    door = Door("127.0.0.1", b"secret")
    ready = Ready("host", "node", "boot", 0.0, {}, {}, "", "", "")
    config, guard = cast(Any, None), cast(Any, None)
    launcher = RayLauncher(config, Invitation(door.address, b"secret", ""), door, ready, live=False, guard=guard)
    pairs = [socket.socketpair() for _ in range(2)]
    for number, (ours, _) in enumerate(pairs):
        launcher.add(Link(f"Ray's actor {number}", Channel(ours, FromRemoteKeeper), ready, "boot"))
    grown: list[Shape] = []
    monkeypatch.setattr(launcher, "_grow", lambda shape, within: bool(grown.append(shape)))
    for _, theirs in pairs[:dead]:
        theirs.close()
    assert launcher.has_room(Shape(2)) == (dead == 0)
    assert grown == ([Shape(dead)] if dead else [])
    launcher.say_goodbye(0)
    for sock in [end for pair in pairs for end in pair]:
        sock.close()


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc")
def test_a_dead_keeper_ends_what_its_own_ranks_had_started_and_nothing_of_other_keepers(tmp_path: Path) -> None:
    keepers = (101, 102)  # of one host, whose ranks have the run's folder together
    programs = [
        subprocess.Popen(["sleep", "600"], env={RUN_VARIABLE: run_mark(str(tmp_path), keeper), "PATH": os.defpath})
        for keeper in keepers
    ]
    try:
        orphans.end(run_mark(str(tmp_path), keepers[0]), set())
        assert programs[0].wait(60) == -signal.SIGKILL
        assert programs[1].poll() is None
    finally:
        for program in programs:
            program.kill()
            program.wait()


# --- torchrun's processes without an agent -------------------------------------------------------------------

ONE = """
    import pytest

    @pytest.mark.world(2)
    def test_one(world): pass
"""

#: Ends one process while it collects, once all have connected: the kernel reports it, and nobody waits for long.
ENDS = """
    import os, pathlib, signal, time

    def pytest_collection_finish(session):
        member = session.config.pluginmanager.get_plugin("everyrank-spawned")
        while member is not None and not member.connects():  # process 0 may not listen yet
            time.sleep(0.01)
        met = pathlib.Path(__file__).parent
        (met / f"met-{os.environ['RANK']}").touch()
        if os.environ["RANK"] == os.environ["ENDS"]:
            while len(list(met.glob("met-*"))) < int(os.environ["WORLD_SIZE"]):
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.group("clusters")
@pytest.mark.parametrize("ends", [1, 2])
def test_the_controller_reports_at_once_that_another_process_ended(project: Project, ends: int) -> None:
    project.write("conftest.py", ENDS)
    project.write("test_inner.py", ONE)
    started = by_hand(project, count=3, ENDS=str(ends))
    inner = started.finish()  # nothing is left, also no folder
    codes = [process.returncode for process in started.agents]
    assert (codes[0], codes[ends]) == (pytest.ExitCode.USAGE_ERROR, -9), inner.out
    # The third has met the controller by then, or has not.
    assert codes[3 - ends] in (CONTROLLER_GONE, pytest.ExitCode.INTERNAL_ERROR)
    assert f"process {ends} of torchrun ended before the first test: the output there says why" in inner.out


@pytest.mark.group("clusters")
def test_the_others_report_at_once_that_the_controller_ended(project: Project) -> None:
    project.write("conftest.py", ENDS)
    project.write("test_inner.py", ONE)
    started = by_hand(project, count=2, ENDS="0")
    inner = started.finish()
    assert [process.returncode for process in started.agents] == [-9, pytest.ExitCode.INTERNAL_ERROR]
    assert "process 1 of torchrun cannot reach the controller: it ended before it had collected" in inner.out


# --- a whole run ---------------------------------------------------------------------------------------------


def test_tests_are_errors_if_no_keeper_can_be_started(project: Project) -> None:
    project.write("conftest.py", "from everyrank.launch import spawn\nspawn._KEEPER = 'no_module_of_this_name'\n")
    project.write(
        "test_inner.py",
        """
        import pytest

        @pytest.mark.world(2)
        def test_one(world): pass

        def test_single(): pass

        @pytest.mark.world(2)
        def test_two(world): pass
        """,
    )
    inner = project.run("--launcher=spawn")
    assert inner.outcomes() == {"test_one": "error", "test_single": "passed", "test_two": "error"}
    assert "the keeper of the ranks is gone at its start, as the one before it had" in inner["test_two"].text
    assert "INTERNALERROR" not in inner.out


#: In a process of its own: to import Ray changes the environment.
_LOST = """
from everyrank.errors import MisuseError
from everyrank.launch.remote.ray_actors import Group

class Lost:
    def wait(self, within):
        raise Exception("Placement group c1ddc3e9 does not exist.")

group = object.__new__(Group)
group._placement = Lost()
try:
    group.has_room(1.0)
except MisuseError as error:
    print(error)
"""


@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
def test_a_cluster_whose_own_process_has_died_is_named() -> None:
    done = subprocess.run([sys.executable, "-c", _LOST], capture_output=True, text=True, check=False, timeout=120)
    lost = "the Ray cluster has lost what it had reserved for a world: Placement group c1ddc3e9 does not exist.\n"
    assert done.stdout == lost, done.stderr


def test_a_cluster_that_has_lost_all_nodes_skips_no_test(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = object.__new__(RayLauncher)
    monkeypatch.setattr(launcher, "_missing", lambda shape: shape, raising=False)
    cluster = SimpleNamespace(nodes_with=lambda kind: [1])
    monkeypatch.setattr(remote, "ray_actors", cluster, raising=False)
    assert launcher.cannot_start(Shape(2)) == "needs 2 ranks, the Ray cluster has 1 CPU"
    cluster.nodes_with = lambda kind: []
    assert launcher.cannot_start(Shape(2)) == ""
    with pytest.raises(MisuseError, match="no node of the Ray cluster is alive any more"):
        launcher.start(Shape(2))
