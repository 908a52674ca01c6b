"""A rank's standard streams: pytest's own capture, started anew on files that the controller can read."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest


def take_over(config: pytest.Config, out: int, err: int) -> None:
    """Leave the controller's capture, whose files are shared after a fork, for one of this rank's own."""
    manager: Any = config.pluginmanager.getplugin("capturemanager")
    if manager is None:
        _redirect(out, err)
        return
    if manager._global_capturing is not None:
        # Not stop_global_capturing(): that reads, and so moves, what the controller captured.
        manager._global_capturing.stop_capturing()
        manager._global_capturing = None
    if manager._method == "fd":
        manager.start_global_capturing()
        capturing: Any = manager.__dict__["_global_capturing"]
        capturing.suspend_capturing(in_=False)
        for stream, fd in ((capturing.out, out), (capturing.err, err)):
            os.dup2(fd, stream.tmpfile.fileno(), inheritable=False)
    else:
        _redirect(out, err)
        manager.start_global_capturing()
        manager.suspend_global_capture(in_=False)


def _redirect(out: int, err: int) -> None:
    for stream, fd, target in ((sys.stdout, out, 1), (sys.stderr, err, 2)):
        os.dup2(fd, target)
        if hasattr(stream, "reconfigure"):
            # The controller shows whole lines as they come, also when the rank is killed after them.
            stream.reconfigure(line_buffering=True)
