"""The verdict on worlds that miss their deadline: they end, whatever the ranks do, with a roll call."""

from __future__ import annotations

import re

import pytest

from tests.engines import LAUNCHERS, one_run
from tests.inner import Inner

SOURCE = """
    import ctypes, os, signal, threading, time
    import pytest, torch
    import torch.distributed as dist
    import everyrank

    late = pytest.mark.world(3, timeout=1)
    late_in_group = pytest.mark.world(3, timeout=3)  # by then its ranks are in their collective, busy machine or not


    @late_in_group
    def test_sleeps(process_group, world):
        if world.rank == 1:
            time.sleep(1000)
        dist.all_reduce(torch.ones(1))

    @late_in_group
    def test_ignores_sigterm(process_group, world):
        for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
            try:
                signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError):
                pass
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
        if world.rank == 1:
            threading.Event().wait()
        dist.barrier()

    @late_in_group
    def test_holds_the_gil(process_group, world):
        if world.rank == 1:
            ctypes.PyDLL(None).sleep(1000)
        dist.all_reduce(torch.ones(1))

    @late_in_group
    def test_stops_itself(process_group, world):
        if world.rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        dist.all_reduce(torch.ones(1))

    def serve():
        threading.Event().wait()

    @late
    def test_all_wait(world):
        if world.rank == 2:
            threading.Thread(target=serve, daemon=True).start()
        threading.Event().wait()

    @pytest.fixture
    def hangs_in_setup(world):
        if world.rank == 1:
            threading.Event().wait()

    @pytest.fixture
    def hangs_in_teardown(world):
        yield
        if world.rank == 1:
            threading.Event().wait()

    @late
    def test_hangs_in_setup(hangs_in_setup):
        pass

    @late
    def test_hangs_in_teardown(hangs_in_teardown):
        pass

    @pytest.mark.world(3, timeout=60)
    def test_one_is_behind(process_group, world):
        if world.rank == 2:
            dist.recv(torch.ones(1), src=0)
        dist.all_reduce(torch.ones(1))

    @late
    @pytest.mark.xfail(reason="slow", raises=everyrank.WorldTimeout)
    def test_xfail_that_names_it_covers_a_timeout(world):
        threading.Event().wait()

    @late
    @pytest.mark.xfail(reason="dies", raises=everyrank.RankLost)
    def test_a_timeout_is_no_death(world):
        threading.Event().wait()
"""


worlds = one_run(SOURCE, "--fresh-worlds", launchers=LAUNCHERS)


@pytest.mark.parametrize(
    "test",
    ["test_sleeps", "test_ignores_sigterm", "test_holds_the_gil", "test_stops_itself"],
)
def test_a_missed_deadline_is_a_failure_that_shows_the_odd_one_first(worlds: Inner, test: str) -> None:
    result = worlds[test]
    assert result.outcome == "failed"
    cause, headline, *_ = result.text.splitlines()
    assert re.fullmatch(
        r"rank 1 (is|waits) in \w+ at \S+(, stopped)?; ranks 0,2 wait in \w+ at \S+ \(deadline 3 s\)", cause
    )
    assert headline == "the world of 3 missed its deadline of 3 s (the mark world): ranks 0-2 had not finished"
    roll_call = result.text.partition("roll call")[2].splitlines()[1:3]
    assert roll_call[0].startswith("rank 1 is ")
    assert roll_call[1].startswith("ranks 0,2 are ")


def test_ranks_that_all_hang_are_listed_together(worlds: Inner) -> None:
    result = worlds["test_all_wait"]
    assert result.outcome == "failed"
    roll_call = result.text.partition("roll call")[2].splitlines()[1]
    assert roll_call.startswith("ranks 0-2 are ")


@pytest.mark.parametrize(
    ("test", "location"),
    [
        ("test_sleeps", "test_sleeps at test_inner.py:14"),
        ("test_holds_the_gil", "test_holds_the_gil at test_inner.py:32"),
        ("test_one_is_behind", "recv from rank 0 at test_inner.py"),
        ("test_all_wait", "wait at test_inner.py"),
    ],
)
def test_the_roll_call_shows_what_the_odd_rank_does(worlds: Inner, test: str, location: str) -> None:
    assert location in worlds[test].text


@pytest.mark.parametrize(
    ("test", "cause"),
    [
        (
            "test_sleeps",
            "rank 1 is in test_sleeps at test_inner.py:14; ranks 0,2 wait in all_reduce at test_inner.py:15",
        ),
        ("test_hangs_in_setup", "rank 1 waits in wait at test_inner.py:53 (deadline 1 s)"),
    ],
)
def test_the_first_line_and_the_summary_are_the_cause(worlds: Inner, test: str, cause: str) -> None:
    assert worlds[test].text.startswith(cause)
    assert re.search(rf"FAILED \S+::{test} - {re.escape(cause[:15])}", worlds.out)


def test_where_no_rank_can_go_on_nobody_waits_for_the_deadline(worlds: Inner) -> None:
    assert worlds["test_one_is_behind"].text.startswith(
        "ranks 0,1 wait in their 1st collective, all_reduce at test_inner.py:73; "
        "rank 2 waits in recv from rank 0 at test_inner.py:72\n"
        "the world of 3 was deadlocked: ranks 0-2 could never have continued, so the test ended before its deadline\n"
    )


def test_another_thread_in_the_users_code_is_shown(worlds: Inner) -> None:
    text = worlds["test_all_wait"].text
    assert re.findall(r"another thread of (.*):\d+$", text, re.M) == ["rank 2 is waiting in wait at test_inner.py"]


def test_a_rank_that_was_stopped_is_reported_as_stopped(worlds: Inner) -> None:
    assert re.search(
        r"rank 1 is in test_stops_itself at test_inner.py:\d+, stopped", worlds["test_stops_itself"].text
    )


def test_the_ranks_in_a_collective_are_reported_to_wait_in_it(worlds: Inner) -> None:
    assert "ranks 0,2 are waiting in all_reduce at test_inner.py:15" in worlds["test_sleeps"].text


@pytest.mark.parametrize("test", ["test_hangs_in_setup", "test_hangs_in_teardown"])
def test_only_the_ranks_that_hang_are_late(worlds: Inner, test: str) -> None:
    result = worlds[test]
    assert result.outcome == "failed"
    assert "missed its deadline" in result.text
    phase = test.rpartition("_")[2]
    assert f": rank 1 had not finished its {phase}\n" in result.text
    assert "rank 1 is waiting in wait at test_inner.py" in result.text
    assert f"hangs_in_{phase} at " in result.text


@pytest.mark.parametrize(
    ("test", "outcome"),
    [
        ("test_xfail_that_names_it_covers_a_timeout", "xfailed"),
        ("test_a_timeout_is_no_death", "failed"),
    ],
)
def test_a_timeout_is_expected_only_where_the_mark_names_it(worlds: Inner, test: str, outcome: str) -> None:
    assert worlds[test].outcome == outcome
    if outcome == "xfailed":
        (reason,) = (report["wasxfail"] for report in worlds[test].reports if report["wasxfail"])
        assert reason == "slow: ranks 0-2 wait in wait at test_inner.py:78 (deadline 1 s)"
