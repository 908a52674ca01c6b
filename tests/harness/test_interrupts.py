"""Ctrl-C and SIGTERM: the first makes a watched world answer its roll call, and any other interrupts the run."""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Iterator

import pytest
from everyrank.controller.interrupts import Interrupts
from everyrank.launch.remote.interrupts import leave_to_controller


@pytest.fixture(autouse=True)
def as_in_a_terminal() -> Iterator[None]:
    """The signals' own handlers: a shell starts what runs in the background with SIGINT ignored."""
    own = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in own.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def interrupts() -> Iterator[Interrupts]:
    made = Interrupts()
    made.open()
    yield made
    made.close()


def test_while_nothing_is_watched_an_interrupt_acts_at_once_and_leaves_no_trace(interrupts: Interrupts) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    interrupts.obey()  # a test may have expected it


def test_while_a_world_is_watched_the_first_is_noted_and_wakes_the_watch(interrupts: Interrupts) -> None:
    with selectors.DefaultSelector() as selector:
        with interrupts.noted(selector):
            os.kill(os.getpid(), signal.SIGTERM)
            assert [key.data for key, _ in selector.select(0)] == [interrupts]
        assert not selector.get_map()
    with pytest.raises(KeyboardInterrupt, match="SIGTERM"):
        interrupts.obey()


def test_the_second_acts_at_once_unless_it_is_an_echo(
    interrupts: Interrupts, monkeypatch: pytest.MonkeyPatch
) -> None:
    with selectors.DefaultSelector() as selector, interrupts.noted(selector):
        clock = iter((10.0, 10.001, 12.0))
        monkeypatch.setattr(time, "monotonic", lambda: next(clock))
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)  # as ``timeout`` sends it
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert interrupts.name == "Ctrl-C"


def test_a_worker_gets_one_ctrl_c_twice_and_takes_it_once() -> None:
    worker = Interrupts(is_worker=True)
    with selectors.DefaultSelector() as selector, worker.noted(selector):
        worker.come("Ctrl-C")
        worker.come("Ctrl-C")
    with pytest.raises(KeyboardInterrupt):
        worker.obey()
    worker.close()


def test_handlers_of_others_stay_and_ours_go() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        made = Interrupts()
        made.open()
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
        made.close()
        assert signal.getsignal(signal.SIGINT) == signal.default_int_handler
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_remote_keeper_leaves_interrupts_to_its_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    alarms: list[int] = []
    monkeypatch.setattr(signal, "alarm", alarms.append)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        leave_to_controller()
        os.kill(os.getpid(), signal.SIGINT)
        assert alarms == []
        os.kill(os.getpid(), signal.SIGTERM)
        assert len(alarms) == 1  # it does not outlive a controller that hangs
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_process_that_a_test_forks_ends_by_sigterm_as_always(interrupts: Interrupts) -> None:
    pid = os.fork()
    if pid == 0:
        os.kill(os.getpid(), signal.SIGTERM)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.WTERMSIG(status) == signal.SIGTERM
