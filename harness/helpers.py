"""What multiprocessing and torch keep for as long as a process lives, once it was needed: no leak of any test's.

The names are private to those libraries; where one is missing, its helper is told as any process, thread or file is.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
from typing import Any

#: Its thread hands over descriptors, such as those of shared tensors, to processes that ask for them.
_SHARER = ("multiprocessing.resource_sharer", "_resource_sharer")

#: torch's DataLoader sets this at the first one with workers, for all that follow, and never puts it back.
_LOADERS_HANDLER = "_set_SIGCHLD_handler.<locals>.handler"

#: The longest name of a socket in a folder is 107 bytes; multiprocessing puts some there, under names of 17.
_LONGEST_FOLDER = 88


def fork_server() -> int | None:
    """The process from which multiprocessing forks: what it forks for this process is not its child."""
    pid: int | None = _find("multiprocessing.forkserver", "_forkserver", "_forkserver_pid")
    return pid


def processes() -> set[int | None]:
    return {_find("multiprocessing.resource_tracker", "_resource_tracker", "_pid"), fork_server()}


def descriptors() -> set[str]:
    """Those by which the helpers are spoken to, as names in /proc/self/fd."""
    listener = _find(*_SHARER, "_listener", "_listener", "_socket")
    found = {
        _find("multiprocessing.resource_tracker", "_resource_tracker", "_fd"),
        _find("multiprocessing.forkserver", "_forkserver", "_forkserver_alive_fd"),
        listener.fileno() if listener is not None else None,
    }
    return {str(fd) for fd in found if fd is not None}


def threads() -> set[threading.Thread | None]:
    return {_find(*_SHARER, "_thread")}


def is_handler(value: str) -> bool:
    """Whether a signal's handler, as a text, is one that a library sets once and for all."""
    return _LOADERS_HANDLER in value


def settle(folder: str) -> None:
    """Let multiprocessing put its sockets and named semaphores where they go with the run: it removes them when a
    process ends by itself, which a rank does not."""
    config = _find("multiprocessing.process", "_current_process", "_config")
    if config is None or "tempdir" in config:
        return
    config["semprefix"] = f"/{os.path.basename(folder)}"
    with contextlib.suppress(OSError):  # the run's folder is gone, which others say
        os.makedirs(_sockets(folder), mode=0o700, exist_ok=True)
        config["tempdir"] = _sockets(folder)


def remove_all(folder: str) -> None:
    """Sockets and semaphores of the ranks of the run that has this folder, when all of them are gone."""
    shutil.rmtree(_sockets(folder), ignore_errors=True)
    prefix = f"sem.{os.path.basename(folder)}-"
    with contextlib.suppress(OSError):
        for name in os.listdir("/dev/shm"):
            if name.startswith(prefix):
                os.unlink(f"/dev/shm/{name}")


def _sockets(folder: str) -> str:
    """Where sockets go with the run: in its folder, or in a short one, if their names would be too long in there."""
    inside = os.path.join(folder, "mp")
    return inside if len(os.fsencode(inside)) <= _LONGEST_FOLDER else f"/tmp/{os.path.basename(folder)}.mp"


def _find(module: str, *names: str) -> Any:
    """What a private name of a module stands for, if the module is imported and has it."""
    found: Any = sys.modules.get(module)
    for name in names:
        found = getattr(found, name, None)
    return found
