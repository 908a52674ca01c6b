"""The named pipe by which the controller asks a rank's witness."""

from __future__ import annotations

import contextlib
import os

#: The questions: what the main thread waits in, and what NCCL's flight recorder shows.
WAIT, NCCL = b"?", b"n"


def path(run_folder: str, pid: int | None) -> str:
    """Return the path of the FIFO in the run's folder by which a rank is asked."""
    return os.path.join(run_folder, f"witness-{pid}")


def remove(run_folder: str, pid: int | None) -> None:
    """Remove the FIFO of a rank that has ended; ranks end without cleaning up."""
    with contextlib.suppress(OSError):  # most ranks have no FIFO
        os.unlink(path(run_folder, pid))


def ask(fifo: str, questions: bytes = WAIT) -> bool:
    """Wake a rank's witness. Return False if it has none."""
    try:
        fd = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        return os.write(fd, questions) == len(questions)
    except OSError:
        return False
    finally:
        os.close(fd)
