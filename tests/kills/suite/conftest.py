"""Reports each moment of a run to the process that kills: in datagrams, which wait for nobody."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import time
from typing import Any

import pytest

_controllers: list[int] = []


def note(kind: str, nodeid: str = "", **more: int) -> None:
    """Send a datagram. The socket is closed at once: the leaks of a test are not ours."""
    event = {"kind": kind, "test": nodeid.rpartition("::")[2], "pid": os.getpid(), "at": time.monotonic(), **more}
    with contextlib.suppress(OSError, KeyError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        sock.sendto(json.dumps(event).encode(), os.environ["KILLS_SOCKET"])


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    config = session.config
    hands_out = getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput")
    if not hands_out and not config.pluginmanager.has_plugin("everyrank-spawned"):
        _controllers.append(os.getpid())
        note("collected")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("launcher") == "ray":
        _note_knocks()


def _note_knocks() -> None:
    """Report each knock at the controller's door once it is greeted, and give the hunt time to kill who knocks."""
    from everyrank.launch.remote.door import Door

    greet, numbers = Door._greet, itertools.count(1)

    def greet_and_note(door: Door) -> None:
        before = set(door._pending)
        greet(door)
        for sock in set(door._pending) - before:
            if os.getpid() in _controllers:
                note("knock", str(next(numbers)), port=sock.getpeername()[1])
                time.sleep(0.05)

    Door._greet = greet_and_note  # type: ignore[method-assign]


def pytest_runtest_logstart(nodeid: str) -> None:
    if os.getpid() in _controllers:
        note("start", nodeid)


@pytest.hookimpl(trylast=True)
def pytest_runtest_logfinish(nodeid: str) -> None:
    if os.getpid() in _controllers:
        note("finish", nodeid)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    note("began", item.nodeid)


@pytest.fixture
def middle(request: pytest.FixtureRequest) -> Any:
    return lambda: note("middle", request.node.nodeid)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish() -> None:
    if os.getpid() in _controllers:
        note("finished")
