"""Say what to do if the system refuses what a world needs."""

from __future__ import annotations

import contextlib
import errno
import resource
from pathlib import Path

from everyrank.errors import MisuseError

_ADVICE = {
    errno.EMFILE: (
        "this process has no file descriptor left: raise its limit (ulimit -n 4096), use smaller worlds, or close "
        "the files that tests leave open (--leaks=report names them)"
    ),
    errno.ENFILE: "this machine has no file descriptor left: end other programs, or raise fs.file-max",
    errno.EAGAIN: (
        "a fork was refused: this user or container has as many processes as it may. Raise the limit (ulimit -u, or "
        "the container's limit of pids), use smaller worlds, or fewer workers (-n)"
    ),
    errno.ENOMEM: "there is no memory left: use smaller worlds, or fewer workers (-n)",
}


def advice(error: OSError) -> str:
    """Return what happened and what to do; for any other error, its own text."""
    return _ADVICE.get(error.errno or 0, str(error))


def check(ranks: int, descriptors: int) -> None:
    """Raise a MisuseError if this many ranks can never be started, each with this many descriptors here."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != resource.RLIM_INFINITY and ranks > files // descriptors:
        raise MisuseError(
            f"a world of {ranks} ranks can never be started: for each rank this process needs {descriptors} file "
            f"descriptors, and it may have {files} (ulimit -n): {files // descriptors} ranks at the most"
        )
    with contextlib.suppress(OSError, ValueError):
        processes = int(Path("/proc/sys/kernel/pid_max").read_text())
        if ranks > processes:
            raise MisuseError(
                f"a world of {ranks} ranks can never be started: this machine may have {processes} processes"
            )
