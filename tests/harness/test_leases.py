"""Leases: the worlds of all pytest processes share the slots of one machine, and a dead holder keeps none."""

from __future__ import annotations

import multiprocessing
import os
import signal
import stat
import threading
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from everyrank.errors import MisuseError
from everyrank.resources import leases
from everyrank.resources.leases import Leases, LockFile

SPAWN = multiprocessing.get_context("spawn")


def _hold(folder: Path, slots: int, ranks: int, pipe: Connection) -> None:
    """Take slots in another process, report it, and release them when a message comes."""
    with Leases(slots, folder).held(ranks):
        pipe.send("held")
        pipe.recv()
    pipe.send("free")


def _take_turns(folder: Path, slots: int, ranks: int, times: int, log: str) -> None:
    """Note in another process when slots are taken and released, in one shared file."""
    mine = Leases(slots, folder)
    for _ in range(times):
        with mine.held(ranks):
            _note(log, f"+{ranks}")
            _note(log, f"-{ranks}")


def _note(log: str, line: str) -> None:
    fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(fd, f"{line}\n".encode())
    os.close(fd)


class Holder:
    """Start a process that holds slots until a message comes, or until it is killed."""

    def __init__(self, folder: Path, slots: int, ranks: int) -> None:
        self.pipe, theirs = SPAWN.Pipe()
        self.process = SPAWN.Process(target=_hold, args=(folder, slots, ranks, theirs), daemon=True)
        self.process.start()
        theirs.close()
        assert self.pipe.recv() == "held"

    def let_go(self) -> None:
        self.pipe.send("let go")
        assert self.pipe.recv() == "free"
        self.end()

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _free(folder: Path, slots: int) -> int:
    """Return how many slots are free."""
    found = 0
    for number in range(slots):
        fd = os.open(folder / f"cpu-{number}", os.O_RDWR | os.O_CREAT, 0o600)
        found += leases._try(fd)
        os.close(fd)
    return found


def test_a_world_takes_one_slot_a_rank_and_gives_them_back(tmp_path: Path) -> None:
    mine = Leases(4, tmp_path)
    with mine.held(3):
        assert _free(tmp_path, 4) == 1
    assert _free(tmp_path, 4) == 4
    mine.close()


def test_a_world_larger_than_the_capacity_takes_all_slots(tmp_path: Path) -> None:
    mine = Leases(4, tmp_path)
    with mine.held(128):
        assert _free(tmp_path, 4) == 0
    mine.close()


def test_slots_are_given_back_when_the_world_fails(tmp_path: Path) -> None:
    mine = Leases(4, tmp_path)
    with pytest.raises(KeyboardInterrupt), mine.held(4):
        raise KeyboardInterrupt
    assert _free(tmp_path, 4) == 4
    mine.close()


def test_no_file_is_left_of_slots_that_nobody_holds(tmp_path: Path) -> None:
    """Files of another run stay; a file that is removed while it is opened is made again."""
    folder = tmp_path / "leases"
    mine, yours = Leases(3, folder), Leases(3, folder)
    with mine.held(1), yours.held(1):
        pass
    with mine.held(1):
        yours.close()
        assert sorted(path.name for path in folder.iterdir()) == ["cpu-0"]
        with yours.held(2):
            assert _free(folder, 3) == 0
    mine.close()
    yours.close()
    assert not folder.exists()


def test_the_lock_of_a_file_that_was_removed_meanwhile_is_no_lease(tmp_path: Path) -> None:
    first, second, third = (LockFile(tmp_path / "cpu-0") for _ in range(3))
    assert first.take()
    assert not second.take()  # it has the file open from now on
    first.remove()
    assert second.take()
    assert not third.take()
    second.close()
    third.close()


def test_slots_held_elsewhere_are_waited_for(tmp_path: Path) -> None:
    holder = Holder(tmp_path, 4, 3)
    taken = threading.Event()

    def take() -> None:
        mine = Leases(4, tmp_path)
        with mine.held(2):
            taken.set()
        mine.close()

    thread = threading.Thread(target=take)
    thread.start()
    _until_somebody_waits(tmp_path)
    assert not taken.is_set()
    holder.let_go()
    thread.join()
    assert taken.is_set()


def _until_somebody_waits(folder: Path) -> None:
    """Return once another process waits for slots, and so holds the turnstile."""
    fd = os.open(folder / "turnstile", os.O_RDWR | os.O_CREAT, 0o600)
    while leases._try(fd):
        leases.fcntl.flock(fd, leases.fcntl.LOCK_UN)
        os.sched_yield()
    os.close(fd)


def test_two_processes_never_hold_more_than_the_capacity(tmp_path: Path) -> None:
    folder, log = tmp_path / "leases", tmp_path / "log"
    sizes = (3, 2, 4)
    crowd = [SPAWN.Process(target=_take_turns, args=(folder, 4, ranks, 60, str(log))) for ranks in sizes]
    for process in crowd:
        process.start()
    for process in crowd:
        process.join()
    assert [process.exitcode for process in crowd] == [0, 0, 0]
    held, most = 0, 0
    for line in log.read_text().splitlines():
        held += int(line)
        most = max(most, held)
    assert (held, most) == (0, 4)


def test_two_that_each_want_all_slots_take_turns(tmp_path: Path) -> None:
    """Without a turnstile, each would hold half of the slots for ever."""
    folder, log = tmp_path / "leases", tmp_path / "log"
    pair = [SPAWN.Process(target=_take_turns, args=(folder, 8, 8, 100, str(log))) for _ in range(2)]
    for process in pair:
        process.start()
    for process in pair:
        process.join()
    assert [process.exitcode for process in pair] == [0, 0]
    lines = log.read_text().splitlines()
    assert lines == ["+8", "-8"] * 200


def test_a_killed_holder_frees_its_slots(tmp_path: Path) -> None:
    holder = Holder(tmp_path, 4, 4)
    assert _free(tmp_path, 4) == 0
    assert holder.process.pid is not None
    os.kill(holder.process.pid, signal.SIGKILL)
    holder.process.join()
    mine = Leases(4, tmp_path)
    with mine.held(4):
        pass
    mine.close()
    holder.end()


def test_the_folder_and_its_files_are_the_owners_only(tmp_path: Path) -> None:
    folder = tmp_path / "leases"
    mine = Leases(2, folder)
    with mine.held(1):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    mine.close()


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o722])
def test_a_folder_writable_by_others_is_refused(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "leases"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(MisuseError, match="can be written by others: remove it, or name a folder in EVERYRANK_LEA"):
        Leases(2, folder).held(1).__enter__()
    assert list(folder.iterdir()) == []


def test_a_link_is_never_followed_to_a_folder(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "leases").symlink_to("elsewhere")
    with pytest.raises(MisuseError, match="leases is a link: remove it, or name a folder in EVERYRANK_LEASES"):
        Leases(2, tmp_path / "leases").held(1).__enter__()
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_link_is_never_followed_to_a_slot(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("kept")
    (tmp_path / "leases").mkdir(mode=0o700)
    (tmp_path / "leases" / "cpu-0").symlink_to("../precious")
    with pytest.raises(OSError, match="symbolic links"):
        Leases(1, tmp_path / "leases").held(1).__enter__()
    assert (tmp_path / "precious").read_text() == "kept"


def test_the_folder_can_be_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EVERYRANK_LEASES", str(tmp_path / "here"))
    assert leases.folder() == tmp_path / "here"


@pytest.mark.parametrize("variable", ["XDG_RUNTIME_DIR", "XDG_CACHE_HOME"])
def test_the_folder_is_one_that_outlives_a_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str
) -> None:
    for name in ("EVERYRANK_LEASES", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    assert leases.folder() == tmp_path / "everyrank-leases"


def test_a_home_without_a_cache_folder_gets_a_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("EVERYRANK_LEASES", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert leases.folder() == tmp_path / ".cache" / "everyrank-leases"


def test_a_user_without_a_home_gets_a_folder_of_their_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("EVERYRANK_LEASES", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "nowhere"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert leases.folder() == tmp_path / f"everyrank-leases-{os.getuid()}"


def test_a_small_machine_runs_at_least_one_world_of_four_at_a_time() -> None:
    assert leases.capacity() >= 4
