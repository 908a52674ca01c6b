"""The processes that ranks have started: what they are, and their stacks, if they are forks of a rank."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from typing import IO

from everyrank.launch.protocol import STACKS_SIGNAL, AskedChild

#: So many children of each rank are asked, and all within this many seconds.
_MOST, _WITHIN = 16, 0.3
#: torch gives a worker's main thread this name.
_WORKER = "pt_data_worker"


def ask(parents: Mapping[int, tuple[int | None, IO[bytes]]]) -> dict[int, tuple[AskedChild, ...]]:
    """Ask the children of these ranks, each given by its process and the file of its stacks, into which they write.

    The children of one rank answer one after the other, since they write into one file.
    """
    until = time.monotonic() + _WITHIN
    asked: dict[int, list[AskedChild]] = {}
    for rank, (parent, stacks) in parents.items():
        for pid in _below(parent)[:_MOST]:
            text = _answer(pid, stacks, until) if _answers(pid, stacks) else ""
            asked.setdefault(rank, []).append(AskedChild(pid, title(pid), text))
    return {rank: tuple(children) for rank, children in asked.items()}


def titles(parent: int | None, without: frozenset[int]) -> list[str]:
    """Name the children of a process, and theirs, except some: ``DataLoader worker 4711``."""
    return [f"{title(pid)} {pid}" for pid in _below(parent) if pid not in without]


def title(pid: int) -> str:
    """Return what a process is: a worker of a loader, or a program."""
    name = ""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/comm") as file:
        name = file.read().strip()
    return "DataLoader worker" if name == _WORKER else f"process {name or '?'}"


def _below(parent: int | None) -> list[int]:
    """Return the children of a process, and theirs."""
    families = [parent]
    for process in families:
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{process}/task"):
                with open(f"/proc/{process}/task/{thread}/children") as file:
                    families += map(int, file.read().split())
    return [pid for pid in families[1:] if pid]


def handles_signal(pid: int) -> bool:
    """Return whether a process handles the signal that asks for its stacks, which would end others."""
    with open(f"/proc/{pid}/status") as file:
        caught = next(line for line in file if line.startswith("SigCgt:")).split()[1]
    return bool(int(caught, 16) >> (STACKS_SIGNAL - 1) & 1)


def _answers(pid: int, stacks: IO[bytes]) -> bool:
    """Return whether a process is a fork of the rank and handles the signal."""
    try:
        files = os.listdir(f"/proc/{pid}/fd") if handles_signal(pid) else []
        written = os.fstat(stacks.fileno())
        return any(os.path.samestat(written, os.stat(f"/proc/{pid}/fd/{fd}")) for fd in files)
    except (OSError, StopIteration):
        return False


def _answer(pid: int, stacks: IO[bytes], until: float) -> str:
    """Return what a process writes when it is asked; "" if it does not answer in time."""
    before = last = os.fstat(stacks.fileno()).st_size
    with contextlib.suppress(OSError):
        os.kill(pid, STACKS_SIGNAL)
    while time.monotonic() < until:
        time.sleep(0.001)
        size = os.fstat(stacks.fileno()).st_size
        if size == last > before:
            return os.pread(stacks.fileno(), size - before, before).decode("utf-8", "replace")
        last = size
    return ""
