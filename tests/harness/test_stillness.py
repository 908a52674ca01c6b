"""The search for processes that stand still, on processes that do and that do not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from everyrank import proc_stat
from everyrank.controller import stillness
from everyrank.controller.stillness import Look
from everyrank.launch import processes, sleep

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it needs /proc")

StartPython = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[StartPython]:
    running = []

    def python(code: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", f"import os, sys, threading, time\n{code}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        assert process.stdout is not None
        process.stdout.readline()  # the process has reached its last line
        return process

    yield python
    for process in running:
        process.kill()
        process.communicate()


def asleep(process: subprocess.Popen[str]) -> Look:
    """Return the first look that finds the process asleep."""
    while (found := stillness.look([process.pid], time.monotonic())) is None:
        os.sched_yield()
    return found


def test_a_process_that_waits_stands_still(start: StartPython) -> None:
    process = start("print(flush=True); sys.stdin.readline()")
    first = asleep(process)
    again = asleep(process)
    assert first.switches.keys() == {(process.pid, process.pid)}
    assert again.still_since(first)


def test_a_process_that_has_run_in_between_does_not(start: StartPython) -> None:
    process = start("print(flush=True)\nfor line in sys.stdin: print(flush=True)")
    first = asleep(process)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    process.stdout.readline()
    again = asleep(process)
    assert not again.still_since(first)
    assert again.still_since(first, excluding=frozenset({(process.pid, process.pid)}))


def test_a_process_that_works_is_awake(start: StartPython) -> None:
    process = start("print(flush=True)\nwhile True: pass")
    assert stillness.look([process.pid], 0.0) is None


def test_a_process_that_is_stopped_does_not_stand_still(start: StartPython) -> None:
    process = start("print(flush=True); sys.stdin.readline()")
    asleep(process)
    os.kill(process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    assert stillness.look([process.pid], 0.0) is None


def test_the_children_of_a_process_are_seen_and_must_sleep(start: StartPython) -> None:
    process = start(
        "import subprocess; sleeps = subprocess.Popen(['cat'], stdin=0); dead = subprocess.Popen(['true'])\n"
        "os.waitid(os.P_PID, dead.pid, os.WEXITED | os.WNOWAIT)\n"
        "print(sleeps.pid, flush=True); threading.Event().wait()"
    )
    (child,) = asleep(process).children  # the other has ended
    os.kill(child, signal.SIGSTOP)
    while Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        os.sched_yield()
    assert stillness.look([process.pid], 0.0) is None
    os.kill(child, signal.SIGKILL)


def test_a_process_that_is_gone_is_not_seen(start: StartPython) -> None:
    process = start("print(flush=True)")
    process.wait()
    assert stillness.look([process.pid, os.getpid()], 0.0) is None


def test_only_a_thread_without_a_time_limit_sleeps_for_ever(start: StartPython) -> None:
    process = start(
        "lock = threading.Lock(); lock.acquire()\n"
        "for wait in (lock.acquire, lambda: time.sleep(1000)): threading.Thread(target=wait, daemon=True).start()\n"
        "print(flush=True); sys.stdin.readline()"
    )
    while len(found := asleep(process).unknown) < 2:
        os.sched_yield()
    assert sorted(map(sleep.sleeps_for_ever, found)) == [False, True]


def test_a_loop_of_gloo_may_wake_without_work_but_not_work() -> None:
    before = Look(0.0, {(1, 1): 5}, {(1, 2): 1.0})
    assert Look(1.0, {(1, 1): 5}, {(1, 2): 1.002}).still_since(before)
    assert not Look(1.0, {(1, 1): 5}, {(1, 2): 1.2}).still_since(before)


def test_a_main_thread_may_poll_but_not_work() -> None:
    before = Look(0.0, {(1, 1): 5}, mains={(1, 1): 1.0})
    polls, works = (Look(1.0, {(1, 1): 95}, mains={(1, 1): ran}) for ran in (1.004, 1.1))
    assert not polls.still_since(before)
    assert polls.still_since(before, may_poll=True)
    assert not works.still_since(before, may_poll=True)
    assert polls.polled((1, 1), before)
    assert not Look(1.0, {(1, 1): 7}).polled((1, 1), before)


def test_a_loop_of_gloo_that_had_no_turn_may_have_work() -> None:
    """On a busy machine it waits for a core."""
    before = Look(0.0, turns={(1, 2): 7})
    assert not Look(1.0, turns={(1, 2): 7}).loops_turned(before)
    assert Look(1.0, turns={(1, 2): 9}).loops_turned(before)


def test_a_thread_that_waits_for_another_process_does_not_sleep_for_ever(start: StartPython) -> None:
    process = start(
        "import multiprocessing; semaphore = multiprocessing.get_context('fork').Semaphore(0)\n"
        "print(flush=True); semaphore.acquire()"
    )
    asleep(process)
    assert sleep.sleep_of((process.pid, process.pid)) == ""


@pytest.mark.parametrize(
    ("state", "flags", "pending", "ending"),
    [
        ("S", 0x400000, 0, False),
        ("S", 0x400000, 1 << (signal.SIGTERM - 1), False),
        ("R", 0x400000, 1 << (signal.SIGKILL - 1), True),
        ("R", 0x400000 | 0x4, 0, True),
        ("Z", 0x400000, 0, True),
    ],
    ids=["asleep", "asked-to-end", "killed", "exiting", "ended"],
)
def test_a_process_is_ending_from_its_kill_on(state: str, flags: int, pending: int, ending: bool) -> None:
    fields = [state, *["0"] * 40]
    fields[6], fields[28] = str(flags), str(pending)
    assert proc_stat.Stat(f"7 (a name) of ) it) {' '.join(fields)}").is_ending == ending


def test_a_killed_process_is_ending_before_its_connections_close_and_until_it_is_gone(start: StartPython) -> None:
    for _ in range(5):
        process = start("print(flush=True); time.sleep(1000)")
        assert not processes.is_ending(process.pid)
        process.kill()
        assert process.stdout is not None
        assert process.stdout.read() == ""  # it has closed its end
        assert processes.is_ending(process.pid)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert processes.is_ending(process.pid)
        process.wait()
        assert processes.is_ending(process.pid)
