"""At an interrupt, let the workers of pytest-xdist report the tests that they were running.

pytest-xdist reads no more reports once it is interrupted. A worker ends the world that it watches in a second or two,
and reports its test with the roll call.
"""

from __future__ import annotations

import contextlib
import queue
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

#: The workers have this many seconds to report.
_WITHIN = 4.0

_LAST = ("workerfinished", "errordown", "internal_error")


@contextlib.contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Let SIGTERM interrupt this process as Ctrl-C does, unless it is handled already."""
    handled = signal.getsignal(signal.SIGTERM) != signal.SIG_DFL
    if handled:
        yield
        return
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)


def let_workers_report(config: pytest.Config) -> None:
    """Interrupt the workers, and pass on what they report. A second interrupt ends them at once."""
    session: Any = config.pluginmanager.get_plugin("dsession")
    nodes = set(getattr(session, "_active_nodes", ()))
    try:
        for node in nodes:
            _signal(node, signal.SIGINT)
        _pass_on(config, session, nodes)
    except KeyboardInterrupt:
        for node in nodes:
            _signal(node, signal.SIGKILL)


def _pass_on(config: pytest.Config, session: Any, nodes: set[Any]) -> None:
    until = time.monotonic() + _WITHIN
    while nodes and (seconds_left := until - time.monotonic()) > 0:
        try:
            event, arguments = session.queue.get(timeout=seconds_left)
        except queue.Empty:
            return
        if event == "testreport":
            report = arguments["rep"]
            report.node = arguments["node"]
            config.hook.pytest_runtest_logreport(report=report)
        elif event in _LAST:
            nodes.discard(arguments["node"])


def _signal(node: Any, number: int) -> None:
    """Send a signal to a worker that is a child of this process. It may have got Ctrl-C from the terminal, too."""
    process = getattr(getattr(node.gateway, "_io", None), "popen", None)
    if process is not None:
        process.send_signal(number)
