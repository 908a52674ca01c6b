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

    multiprocessing's resource tracker is spared: it ends on its own, and removes the semaphores that are left.
    """
    until = time.monotonic() + 5
    while (pids := children(os.getpid())) and time.monotonic() < until:
        for pid in pids:
            if not _is_tracker(pid):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.002)


def children(pid: int) -> list[int]:
    """Return the processes that the threads of a process have started."""
    return [int(child) for file in Path(f"/proc/{pid}/task").glob("*/children") for child in file.read_text().split()]


def _is_tracker(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return b"multiprocessing.resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False
