"""A waiting test reports who holds the slots, at the terminal and in the report. Dead holders do not count."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from everyrank.resources import holders, leases
from everyrank.resources.holders import Holder
from everyrank.resources.leases import Leases

from tests.inner import Project

SLOTS = 4


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "PATIENCE", 0.0)


class Waiting:
    """Let a world wait for slots on a thread, and return its report."""

    def __init__(self, folder: Path, run: int) -> None:
        self.messages: list[str] = []
        self.summary = ""
        self._spoke = threading.Event()
        self._thread = threading.Thread(target=self._wait, args=(folder, run))
        self._thread.start()

    def _wait(self, folder: Path, run: int) -> None:
        mine = Leases(SLOTS, folder, self._say, run)
        with mine.held(2, "test_wait.py::test_waits") as self.summary:
            pass
        mine.close()

    def _say(self, text: str) -> None:
        self.messages.append(text)
        self._spoke.set()

    def speaks(self) -> str:
        assert self._spoke.wait(60)
        return self.messages[0]

    def end(self) -> None:
        self._thread.join()


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[list[int]]:
    """Lock all slots, and write nothing into their files."""
    fds = [os.open(tmp_path / f"cpu-{number}", os.O_RDWR | os.O_CREAT, 0o600) for number in range(SLOTS)]
    for fd in fds:
        fcntl.flock(fd, fcntl.LOCK_EX)
    yield fds
    for fd in fds:
        os.close(fd)


def message_while(fds: list[int], folder: Path, run: int = 1) -> str:
    waiting = Waiting(folder, run)
    message = waiting.speaks()
    for fd in fds:
        fcntl.flock(fd, fcntl.LOCK_UN)
    waiting.end()
    assert len(waiting.messages) == 1
    return message


def test_the_holders_of_slots_are_named_once_and_noted_for_the_report(tmp_path: Path) -> None:
    yours = Leases(SLOTS, tmp_path)
    with yours.held(SLOTS, "test_hold.py::test_holds"):
        waiting = Waiting(tmp_path, run=1)
        message = waiting.speaks()
    waiting.end()
    expected = rf"test_wait\.py::test_waits waits for 2 slots: 4 of 4 slots are held by pytest {os.getpid()}, "
    assert re.fullmatch(expected + r"test_hold\.py, for \d+ s", message)
    assert waiting.messages == [message]
    assert re.fullmatch(re.escape(message) + r" \(it waited \d+ s\)", waiting.summary)


def test_several_holders_are_listed_with_the_slots_of_each(tmp_path: Path, locked: list[int]) -> None:
    me = holders.this_process(2, "test_a.py")
    holders.note(locked[:3], me)
    message = message_while(locked, tmp_path)
    assert "4 of 4 slots are held: 3 by pytest " in message
    assert message.endswith("; 1 by an unknown process")


def test_what_is_free_is_not_counted(tmp_path: Path, locked: list[int]) -> None:
    fcntl.flock(locked[0], fcntl.LOCK_UN)
    holders.note(locked, holders.this_process(2, "test_a.py"))
    assert "3 of 4 slots are held by pytest" in message_while(locked, tmp_path)


def test_the_note_of_a_dead_holder_is_not_believed(tmp_path: Path, locked: list[int]) -> None:
    """Another process took its slot, and has not written yet."""
    dead = subprocess.Popen([sys.executable, "-c", ""])
    born = holders.born(dead.pid)
    dead.wait()
    holders.note(locked, Holder(dead.pid, born, 2, 0.0, "test_dead.py"))
    message = message_while(locked, tmp_path)
    assert message.endswith("4 of 4 slots are held by an unknown process")


def test_another_process_of_the_same_number_is_not_believed(tmp_path: Path, locked: list[int]) -> None:
    holders.note(locked, Holder(os.getpid(), holders.born(os.getpid()) - 1, 2, 0.0, "test_old.py"))
    assert "test_old.py" not in message_while(locked, tmp_path)


def test_what_is_no_note_is_not_believed(tmp_path: Path, locked: list[int]) -> None:
    for fd in locked:
        os.write(fd, b'{"pid": "four"}')
    assert message_while(locked, tmp_path).endswith("an unknown process")


def test_a_note_is_taken_back_with_the_lock(tmp_path: Path) -> None:
    mine = Leases(SLOTS, tmp_path)
    with mine.held(2, "test_a.py::test_a"):
        assert holders.read(tmp_path / "cpu-0") is not None
    assert (tmp_path / "cpu-0").read_bytes() == b""
    mine.close()


def test_workers_of_one_run_take_turns_in_silence(
    tmp_path: Path, locked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    holders.note(locked, holders.this_process(7, "test_a.py"))
    mine = Leases(SLOTS, tmp_path, run=7)
    assert mine.report_wait("waiting", 59, []) == ""
    assert mine.report_wait("waiting", 61, []).startswith("waiting: 4 of 4 slots are held by pytest")


@pytest.mark.parametrize("arguments", [["-n", "1"], ["-s"]], ids=["xdist", "live"])
def test_the_person_at_the_terminal_sees_it_while_the_test_waits(project: Project, arguments: list[str]) -> None:
    project.write("conftest.py", "from everyrank.resources import leases\nleases.PATIENCE = 0.0\n")
    project.write("test_inner.py", "def test_waits(world): world.barrier()\n")
    mine = Leases(leases.capacity(), project.folder / "leases")
    with mine.held(leases.capacity(), "test_hold.py::test_holds"):
        process = project.start(*arguments)
        assert process.stdout is not None
        seen = []
        for line in process.stdout:
            seen.append(line)
            if " slots are held by " in line:
                break
        else:
            raise AssertionError("".join(seen))
    mine.close()
    held = f"{leases.capacity()} of {leases.capacity()} slots are held by pytest {os.getpid()}, test_hold.py, for "
    assert f"everyrank: test_inner.py::test_waits waits for 2 slots: {held}" in seen[-1]
    inner = project.finish(process)
    assert inner["test_waits"].outcome == "passed"
    assert held in inner["test_waits"].sections["waited"]
    assert held in inner["test_waits"].properties["waited"]
