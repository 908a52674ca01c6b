"""End what the ranks of a lost keeper had started, in any session."""

from __future__ import annotations

import contextlib
import os
import signal
import time

from everyrank.model.run_mark import RUN_VARIABLE
from everyrank.patience import Patience

#: It ends within this many seconds.
_END = 5.0


def end(mark: str, sockets: set[int]) -> None:
    """End the orphans of a keeper with this mark, whose ranks had these sockets.

    A program that a rank ran has the mark of its keeper in its environment. A fork of a rank holds its channel.
    """
    patience = Patience(_END)
    while (orphans := _orphans(f"{RUN_VARIABLE}={mark}".encode(), sockets)) and patience.turn():
        for pid in orphans:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)


def _orphans(variable: bytes, sockets: set[int]) -> list[int]:
    links = {f"socket:[{inode}]" for inode in sockets}
    pids = []
    for entry in os.scandir("/proc") if os.path.isdir("/proc/self") else ():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            with open(f"{entry.path}/environ", "rb") as file:
                marked = variable in file.read().split(b"\0")
            with os.scandir(f"{entry.path}/fd") as fds:
                if marked or any(os.readlink(fd.path) in links for fd in fds):
                    pids.append(int(entry.name))
    return pids
