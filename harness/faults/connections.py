"""Cuts the connections of a process, as a network that is gone does: its peers read the end of what it has sent."""

from __future__ import annotations

import os
import socket


def cut(own: int) -> int:
    """Shut down the TCP connections of this process, and return how many. ``own``: a descriptor to leave as it is.

    Those that its parent has, too, are the parent's.
    """
    inherited = _sockets(os.getppid()).values()
    number = 0
    for fd, name in _sockets(os.getpid()).items():
        if fd == own or name in inherited:
            continue
        with socket.socket(fileno=os.dup(fd)) as connection:
            if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.type != socket.SOCK_STREAM:
                continue
            try:
                connection.getpeername()
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # it listens, or its peer has gone
            number += 1
    return number


def _sockets(pid: int) -> dict[int, str]:
    """Return the sockets of a process, by descriptor, with the kernel's name of each."""
    folder, found = f"/proc/{pid}/fd", {}
    for name in os.listdir(folder):
        try:
            target = os.readlink(f"{folder}/{name}")
        except OSError:
            continue  # that of the listing itself
        if target.startswith("socket:"):
            found[int(name)] = target
    return found
