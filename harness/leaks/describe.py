"""Describes leaks: what was left, what it was before, and which line of the user's code made it."""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import threading

from everyrank.leaks.origins import ORIGINS
from everyrank.wire.messages import Leak

#: The kinds of leaks, as nouns in the singular and the plural. Kinds that may explain others come first.
KINDS = {
    "process-group": ("a process group", "process groups"),
    "rpc-agent": ("an RPC agent", "RPC agents"),
    "process": ("a child process", "child processes"),
    "thread": ("a thread", "threads"),
    "rref": ("an RRef", "RRefs"),
    "fd": ("a file descriptor", "file descriptors"),
    "shm": ("shared memory", "pieces of shared memory"),
    "gpu-memory": ("GPU memory", "pieces of GPU memory"),
    "socket": ("a socket", "sockets"),
    "temp-file": ("a temporary file", "temporary files"),
    "env": ("a variable of the environment changed", "variables of the environment changed"),
    "state": ("its process changed", "changes of its process"),
    "signal": ("a signal's handler changed", "handlers of signals changed"),
}

_TCP_LISTEN = "0A"

#: How multiprocessing names semaphores: in other processes, and in a rank.
_SEMAPHORES = ("sem.mp-", "sem.everyrank-")


def as_leak(key: tuple[str, str], value: str, before: str | None, many: set[str]) -> Leak:
    """Describe one difference between two snapshots; in general terms if there are ``many`` of its kind."""
    kind, name = key
    if kind == "process-group":
        size = value.partition(" of ")[2] if kind in many else ""
        return Leak(kind, (f"of {size}" if size else value) + _from("made", ORIGINS.of_group(name)))
    if kind == "rpc-agent":
        location = ORIGINS.of_agent()
        return Leak(kind, f"started at {location}" if location else value)
    if kind == "shm" and name.startswith(_SEMAPHORES):
        return Leak(kind, "a semaphore of multiprocessing")
    if kind == "thread":
        thread = next((thread for thread in threading.enumerate() if str(thread.ident) == name), None)
        return Leak(kind, value + _from("started", ORIGINS.of_thread(thread) if thread is not None else ""))
    if kind == "process":
        return Leak(kind, value + _from("started", ORIGINS.of_process(value)))
    if kind == "fd" and value.startswith("socket:"):
        location = ORIGINS.of_socket(int(name))
        if "socket" in many and not location:
            return Leak("socket", "opened by a library")
        return Leak("socket", _socket(value) + _from("opened", location))
    if kind == "fd":
        return Leak(kind, value + _from("opened", ORIGINS.of_file(value) or ORIGINS.of_pipe(value)))
    if kind == "gpu-memory":
        return Leak(kind, f"{int(value) - int(before or 0)} bytes on {name}")
    if kind == "env":
        return Leak(kind, _changed(f"{name}=", value, before) + _from("set", ORIGINS.of_variable(name)))
    if kind in ("state", "signal"):
        if name.startswith("generator of "):
            return Leak(kind, f"{name} was replaced")
        return Leak(kind, _changed(f"{name}: ", _plain(value), None if before is None else _plain(before)))
    return Leak(kind, value)


def file_leak(path: str) -> Leak:
    """Describe a temporary file that a test left behind."""
    return Leak("temp-file", path + _from("made", ORIGINS.temporary.get(path, "")))


def _from(verb: str, location: str) -> str:
    return f", {verb} at {location}" if location else ""


def _changed(name: str, value: str, before: str | None) -> str:
    if value.startswith("(gone;"):
        return f"{name.rstrip('=: ')} is gone, was {before!r}"
    return f"{name}{value!r}, was {repr(before) if before is not None else 'not set'}"


def _plain(text: str) -> str:
    """Return the text without addresses, so that it is equal on all ranks."""
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def _socket(target: str) -> str:
    """Describe a socket by /proc: ``TCP, listening on 127.0.0.1:29500``."""
    inode = target.removeprefix("socket:[").removesuffix("]")
    for protocol, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6), ("udp", socket.AF_INET)):
        for fields in _table(protocol):
            if len(fields) > 9 and fields[9] == inode:
                local, remote = _address(fields[1], family), _address(fields[2], family)
                if protocol == "udp":
                    return f"UDP, at {local}"
                return f"TCP, listening on {local}" if fields[3] == _TCP_LISTEN else f"TCP, {local} to {remote}"
    for fields in _table("unix"):
        if len(fields) > 6 and fields[6] == inode:
            return f"UNIX, {fields[7]}" if len(fields) > 7 else "UNIX"
    return target


def _table(name: str) -> list[list[str]]:
    with contextlib.suppress(OSError), open(f"/proc/self/net/{name}") as file:
        return [line.split() for line in file.readlines()[1:]]
    return []


def _address(text: str, family: int) -> str:
    """Return an address as people write it; the kernel writes 32-bit words in the host's byte order."""
    digits, _, port = text.partition(":")
    parts = [int(digits[start : start + 8], 16) for start in range(0, len(digits), 8)]
    host = socket.inet_ntop(family, struct.pack(f"={len(parts)}I", *parts))
    return f"[{host}]:{int(port, 16)}" if family == socket.AF_INET6 else f"{host}:{int(port, 16)}"
