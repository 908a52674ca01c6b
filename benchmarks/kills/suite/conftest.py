"""Reports each moment of a run to the process that kills: in datagrams, which wait for nobody."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from typing import Any

import pytest

_controllers: list[int] = []


def note(kind: str, nodeid: str = "") -> None:
    """Send a datagram. The socket is closed at once: the leaks of a test are not ours."""
    event = {"kind": kind, "test": nodeid.rpartition("::")[2], "pid": os.getpid(), "at": time.monotonic()}
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
