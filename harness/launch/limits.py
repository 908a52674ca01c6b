"""Say what to do if the system refuses what a world needs."""

from __future__ import annotations

import errno

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
