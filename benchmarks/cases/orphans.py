"""Orphans become children of this process: it waits for them, so that their processor time counts, or ends them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path

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


def end() -> None:
    """End all processes that this one has started, and what they have started.

    multiprocessing's resource tracker is spared: it ends by itself, and removes the semaphores that are left.
    """
    until = time.monotonic() + 5
    while (children := _children()) and time.monotonic() < until:
        for pid in children:
            if not _is_tracker(pid):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.002)


def _children() -> list[int]:
    me = os.getpid()
    tasks = Path(f"/proc/{me}/task").glob("*/children")
    return [int(pid) for task in tasks for pid in task.read_text().split()]


def _is_tracker(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return b"multiprocessing.resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False
