"""A rank's standard streams: pytest's own capture, started again on files that the controller can read."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

import pytest
from everyrank.launch import surroundings


def leave(config: pytest.Config) -> None:
    """Leave the controller's capture: give the standard streams of the user who started pytest back."""
    manager: Any = config.pluginmanager.getplugin("capturemanager")
    if manager is not None and manager._global_capturing is not None:
        # stop_global_capturing() would read, and so consume, what the controller captured.
        manager._global_capturing.stop_capturing()
        manager._global_capturing = None
        surroundings.mend()  # pytest leaves a stream closed that was closed before


def begin(config: pytest.Config, out: int, err: int) -> None:
    """Capture into this rank's own files."""
    manager: Any = config.pluginmanager.getplugin("capturemanager")
    if manager is None:
        _redirect(out, err)
    elif manager._method == "fd":
        # Native threads also write between the phases: into this rank's files, not onto the terminal.
        os.dup2(out, 1)
        os.dup2(err, 2)
        manager.start_global_capturing()
        capturing: Any = manager.__dict__["_global_capturing"]
        capturing.suspend_capturing(in_=False)
        for stream, fd in ((capturing.out, out), (capturing.err, err)):
            os.dup2(fd, stream.tmpfile.fileno(), inheritable=False)
    else:
        _redirect(out, err)
        manager.start_global_capturing()
        manager.suspend_global_capture(in_=False)
    _leave_out_c10d(config)
    _reopen_logs()


def _leave_out_c10d(config: pytest.Config) -> None:
    """Leave out what torch logs of each collective that raises: the test's failure has its error.

    torch sets its logger to DEBUG whatever the user wants to see, and prints nothing of it; only pytest shows it. A
    user who asks pytest for DEBUG gets it, and so does a test that looks at ``caplog``.
    """
    logs: Any = config.pluginmanager.getplugin("logging-plugin")
    if logs is not None and (logs.log_level is None or logs.log_level > logging.DEBUG):
        logs.report_handler.addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    return record.levelno > logging.DEBUG or not record.name.startswith("c10d-")


class _Stderr:
    """The stderr of the moment, for handlers that live longer than one: pytest changes it with each phase."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


def _reopen_logs() -> None:
    """Point handlers at this rank's stderr: torch's keep the one of their import, which ``leave`` has closed.

    A handler with a closed stream prints a traceback of 8 kB instead of each message.
    """
    for logger in [logging.root, *logging.root.manager.loggerDict.values()]:
        for handler in getattr(logger, "handlers", ()):
            if isinstance(handler, logging.StreamHandler) and getattr(handler.stream, "closed", False):
                handler.stream = _Stderr()  # setStream() would flush the old one


def streams() -> tuple[int, ...]:
    """Return duplicates of the descriptors of this process's standard streams."""
    return tuple(os.dup(fd) for fd in (0, 1, 2))


def _redirect(out: int, err: int) -> None:
    for stream, fd, target in ((sys.stdout, out, 1), (sys.stderr, err, 2)):
        os.dup2(fd, target)
        if hasattr(stream, "reconfigure"):
            # The controller shows whole lines as they arrive, even if the rank is killed after them.
            stream.reconfigure(line_buffering=True)
