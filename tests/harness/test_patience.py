"""The limits that the harness sets on its own: a process that waits for a core is not late."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from everyrank.patience import CoreWaits, Patience


class Wait:
    """Waits as long as a limit says, by a clock of its own."""

    def __init__(self) -> None:
        self.now = 100.0
        self.waited = 0.0  # for a core

    def patience(self, seconds: float, most: float | None = None) -> Patience:
        return Patience(seconds, lambda: self.waited, most, began=self.now)

    def out(self, patience: Patience, turn: Callable[[float], None]) -> float:
        """Let each turn pass until the limit is over; return how long that was."""
        began = self.now
        while left := patience.turn(self.now):
            turn(left)
        return self.now - began

    def idle(self, seconds: float) -> None:
        self.now += seconds

    def without_core(self, seconds: float) -> None:
        self.now += seconds
        self.waited += seconds


@pytest.fixture
def wait() -> Wait:
    return Wait()


class TestPatience:
    @pytest.mark.parametrize("seconds", [0.0, 0.1, 0.5, 5.0, 120.0])
    def test_a_process_that_has_its_cores_gets_the_seconds(self, wait: Wait, seconds: float) -> None:
        assert wait.out(wait.patience(seconds), wait.idle) == pytest.approx(seconds)

    def test_a_wait_for_a_core_does_not_count(self, wait: Wait) -> None:
        patience = wait.patience(5.0)
        for _ in range(100):  # twenty seconds
            wait.without_core(min(0.2, patience.turn(wait.now)))
        assert patience.turn(wait.now)
        began = wait.now
        wait.out(patience, wait.idle)
        assert 4.5 < wait.now - began <= 5.0  # but what was before the first look

    def test_half_a_wait_counts_half(self, wait: Wait) -> None:
        def turn(seconds: float) -> None:
            wait.now += seconds
            wait.waited += seconds / 2

        assert wait.out(wait.patience(5.0), turn) == pytest.approx(10.0, abs=0.3)

    def test_ranks_that_wait_together_do_not_make_time_run_back(self, wait: Wait) -> None:
        def turn(seconds: float) -> None:
            wait.now += seconds
            wait.waited += 8 * seconds

        patience = wait.patience(5.0)
        for _ in range(20):
            turn(patience.turn(wait.now))
        assert wait.out(patience, wait.idle) <= 5.0

    def test_time_in_which_this_process_came_too_late_does_not_count(self, wait: Wait) -> None:
        def turn(seconds: float) -> None:
            wait.now += seconds + 0.9  # the machine stood still, or had no core for this process

        assert wait.out(wait.patience(5.0, most=1000.0), turn) == pytest.approx(50.0, abs=2.0)

    def test_nothing_is_endless(self, wait: Wait) -> None:
        assert wait.out(wait.patience(5.0), wait.without_core) == pytest.approx(50.0)
        assert wait.out(wait.patience(120.0), wait.without_core) == pytest.approx(720.0)
        assert wait.out(wait.patience(0.5, most=20.0), wait.without_core) == pytest.approx(20.0)

    def test_however_late_this_process_comes_the_limit_goes_on(self, wait: Wait) -> None:
        patience = wait.patience(5.0)
        wait.idle(3600.0)
        assert patience.turn(wait.now)
        assert 4.5 < wait.out(patience, wait.idle) <= 5.0

    def test_what_is_over_soon_asks_nothing(self) -> None:
        def asked() -> float:
            raise AssertionError("the kernel was asked")

        patience = Patience(5.0, asked, began=0.0)
        assert [patience.turn(now / 100) > 0 for now in range(10)] == [True] * 10


class Proc:
    """A folder with the files of /proc that describe threads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def thread(
        self, pid: int, tid: int, ran: float = 0, waited: float = 0, turns: int = 0, state: str = "S", child: str = ""
    ) -> None:
        folder = self.folder / str(pid) / "task" / str(tid)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "schedstat").write_text(f"{ran * 1e9:.0f} {waited * 1e9:.0f} {turns}\n")
        (folder / "stat").write_text(f"{tid} (a name) with) {state} 1 1 1 0\n")
        (folder / "children").write_text(child)


class TestCoreWaits:
    @pytest.fixture
    def proc(self, tmp_path: Path) -> Proc:
        return Proc(tmp_path)

    @pytest.fixture
    def count(self, proc: Proc) -> Callable[[float], float]:
        now = 0.0
        waits = CoreWaits([7, None], str(proc.folder), lambda: now)

        def seconds(moment: float) -> float:
            nonlocal now
            now = moment
            return waits()

        return seconds

    def test_what_was_before_the_first_look_does_not_count(self, proc: Proc, count: Callable[[float], float]) -> None:
        proc.thread(7, 7, waited=30)
        assert count(10) == 0
        proc.thread(7, 7, waited=30.5, turns=1)
        assert count(11) == 0.5

    def test_a_wait_counts_while_it_lasts_and_once(self, proc: Proc, count: Callable[[float], float]) -> None:
        proc.thread(7, 7, waited=1, turns=3)
        count(10)
        proc.thread(7, 7, waited=1, turns=3, state="R")  # woken at some time since
        assert count(11) == 0
        assert count(13) == 2.0
        assert count(14) == 3.0
        proc.thread(7, 7, ran=0.1, waited=4.8, turns=4)  # it had a core at last, after 3.8 s
        assert count(15) == pytest.approx(3.8)

    def test_a_thread_that_runs_or_sleeps_does_not_wait(self, proc: Proc, count: Callable[[float], float]) -> None:
        for second in range(5):
            proc.thread(7, 7, ran=second, turns=second, state="R")
            proc.thread(7, 8, state="S")
            proc.thread(7, 9, state="D")
            assert count(second) == 0

    def test_all_threads_and_children_count(self, proc: Proc, count: Callable[[float], float]) -> None:
        proc.thread(7, 7, child="20 ")
        proc.thread(20, 20)
        count(0)
        proc.thread(7, 7, waited=1, child="20 ")
        proc.thread(7, 8, waited=0.25)  # a new thread
        proc.thread(20, 20, waited=2)
        assert count(4) == 3.25

    def test_without_such_files_nothing_is_known(self, count: Callable[[float], float]) -> None:
        assert [count(0), count(9)] == [0, 0]


def test_the_kernel_counts_a_wait_for_a_core() -> None:
    """Two processes on one core: one of them waits while the other runs."""
    if not os.path.exists("/proc/self/schedstat"):
        pytest.skip("this kernel does not count how long a thread waits for a core")
    cores = os.sched_getaffinity(0)
    readers = [os.pipe() for _ in range(2)]
    pids = []
    for reading, writing in readers:
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            os.sched_setaffinity(0, [min(cores)])
            os.write(writing, b"!")
            while True:
                pass
        os.close(writing)
        pids.append(pid)
    try:
        for reading, _ in readers:
            os.read(reading, 1)
        waits = CoreWaits(pids)
        first = waits()
        patience = Patience(0.05, waits)
        while patience.turn():
            pass
        while waits() == first:  # a slice takes milliseconds
            pass
    finally:
        for pid in pids:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
        for reading, _ in readers:
            os.close(reading)
