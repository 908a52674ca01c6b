"""Finds what multiprocessing and torch keep as long as a process lives: these helpers are no leaks of a test.

The names are private to those libraries. If one is missing, its helper is reported like any process, thread or file.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
from collections.abc import Mapping
from typing import Any

#: multiprocessing's thread that sends descriptors, such as those of shared tensors, to processes that ask for them.
_SHARER = ("multiprocessing.resource_sharer", "_resource_sharer")

#: The signal handler that torch's first DataLoader with workers sets; it is never removed.
_DATALOADER_HANDLER = "_set_SIGCHLD_handler.<locals>.handler"

#: The path of a socket has 107 bytes at most; multiprocessing needs 17 of them, and a slash, for its own names.
_LONGEST_FOLDER = 88


def fork_server() -> int | None:
    """Return the process from which multiprocessing forks: the processes that it forks are not our children."""
    pid: int | None = private("multiprocessing.forkserver", "_forkserver", "_forkserver_pid")
    return pid


def processes() -> set[int | None]:
    """Return the helper processes of multiprocessing."""
    return {private("multiprocessing.resource_tracker", "_resource_tracker", "_pid"), fork_server()}


def descriptors() -> set[str]:
    """Return the descriptors that connect this process with its helpers, as names in /proc/self/fd."""
    listener = private(*_SHARER, "_listener", "_listener", "_socket")
    fds = {
        private("multiprocessing.resource_tracker", "_resource_tracker", "_fd"),
        private("multiprocessing.forkserver", "_forkserver", "_forkserver_alive_fd"),
        listener.fileno() if listener is not None else None,
    }
    return {str(fd) for fd in fds if fd is not None}


def threads() -> set[threading.Thread | None]:
    """Return the helper threads of multiprocessing."""
    return {private(*_SHARER, "_thread")}


def is_handler(value: str) -> bool:
    """Return whether a signal's handler, as a text, is one that a library sets and never removes."""
    return _DATALOADER_HANDLER in value


def lock_of_signals(opened: Mapping[str, str]) -> set[str]:
    """Return the ends of the pipe that libuv keeps as its lock of signals, from a process's first TCPStore server on.

    It makes one for a process, which no program inherits. ``opened`` are the files of C++ code, by descriptor.
    """
    global _lock_of_signals
    for file in dict.fromkeys(opened.values()):
        ends = {fd for fd in opened if opened[fd] == file}
        if file.startswith("pipe:") and file == (_lock_of_signals or file) and len(ends) == 2:
            _lock_of_signals = file
            return ends
    return set()


_lock_of_signals = ""


def redirect_multiprocessing(folder: str) -> None:
    """Let multiprocessing put its sockets and named semaphores where they are removed with the run.

    It removes them itself only if a process ends normally, and a rank is killed or ends by ``os._exit``.
    """
    config = private("multiprocessing.process", "_current_process", "_config")
    if config is None or "tempdir" in config:
        return
    config["semprefix"] = f"/{os.path.basename(folder)}"
    with contextlib.suppress(OSError):  # the run's folder is gone, which is reported elsewhere
        os.makedirs(_sockets(folder), mode=0o700, exist_ok=True)
        config["tempdir"] = _sockets(folder)


def remove_all(folder: str) -> None:
    """Remove the sockets and semaphores of a run's ranks, after all of them have ended."""
    shutil.rmtree(_sockets(folder), ignore_errors=True)
    prefix = f"sem.{os.path.basename(folder)}-"
    with contextlib.suppress(OSError):
        for name in os.listdir("/dev/shm"):
            if name.startswith(prefix):
                os.unlink(f"/dev/shm/{name}")


def _sockets(folder: str) -> str:
    """Return the folder for sockets: in the run's folder, or in /tmp if the paths would be too long."""
    inside = os.path.join(folder, "mp")
    return inside if len(os.fsencode(inside)) <= _LONGEST_FOLDER else f"/tmp/{os.path.basename(folder)}.mp"


def private(module: str, *names: str) -> Any:
    """Return what a private name of a module stands for, if the module is imported and has it."""
    value: Any = sys.modules.get(module)
    for name in names:
        value = getattr(value, name, None)
    return value
