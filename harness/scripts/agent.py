"""What torchrun's own process does for the watcher of its ranks: it waits for the verdict before it ends the others.

torchrun looks ten times a second whether a rank has ended, and then ends the others at once: nobody could ask these
what they did, and only a parent learns by which signal its child was killed.
"""

from __future__ import annotations

import contextlib
import functools
import os
from pathlib import Path
from types import ModuleType
from typing import Any

from everyrank.scripts.folder import VARIABLE, Status, runs


def wrap(api: ModuleType) -> None:
    """Wrap the private method by which torchrun looks at its ranks. A torch without it does as it always does."""
    context: Any = api.__dict__["SubprocessContext"]
    look = context._poll

    @functools.wraps(look)
    def looks(self: Any) -> Any:
        with contextlib.suppress(Exception):
            report([handler.proc.pid for handler in self.subprocess_handlers.values()], Path(os.environ[VARIABLE]))
        return look(self)

    context._poll = looks


def report(pids: list[int], folder: Path) -> None:
    """If one of these children has ended badly, write down how, and wait for the verdict."""
    ended = {pid: status for pid in pids if (status := status_of(pid)) is not None}
    if not any(ended.values()):
        return
    run = next((run for run in runs(folder) if {rank.pid for rank in run.ranks().values()} & set(pids)), None)
    if run is None or run.has("verdict"):
        return
    for pid, status in ended.items():
        run.write(f"status-{pid}", Status(status))
    run.await_verdict()


def status_of(pid: int) -> int | None:
    """Return the wait status of a child that has ended, which its parent may ask for once more; None if it lives."""
    with contextlib.suppress(ChildProcessError):
        info = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if info is not None:
            return info.si_status << 8 if info.si_code == os.CLD_EXITED else info.si_status
    return None
