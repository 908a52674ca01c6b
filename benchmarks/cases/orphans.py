"""Make the processor time of orphans count: they become children of this process, which waits for them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import time

_PR_SET_CHILD_SUBREAPER = 36


def adopt() -> None:
    """Make orphans among this process's descendants its children."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def wait() -> None:
    """Wait for the children that are about to end, and are not waited for otherwise."""
    until = time.monotonic() + 5
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < until:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.002)
