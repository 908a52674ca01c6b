"""The processes of a run, found by a variable of their environment, and what each of them is."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

MARKER = "KILLS_RUN"

#: Parts of the command of a worker of pytest-xdist, and of keepers: a fork has its parent's command.
_WORKER = "import sys;exec(eval("
_KEEPERS = ("pytest", _WORKER, "everyrank.rank.spawned")

_STACKS = re.compile(r"/memfd:everyrank-stacks-world-\d+-rank-\d+-of-\d+")


@dataclass(frozen=True)
class Process:
    """What the kernel says of a process."""

    pid: int
    parent: int
    group: int
    session: int
    born: int
    command: str
    torchrun_rank: str  # its RANK at its start, or ""
    has_stacks: bool  # it holds exactly one file of stacks, as a rank does


def found(marker: str) -> dict[int, Process]:
    """Return the living processes of a run, zombies left out."""
    wanted = f"{MARKER}={marker}".encode()
    processes = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError):
                with open(f"/proc/{name}/environ", "rb") as file:
                    environment = file.read().split(b"\0")
                if wanted in environment and (process := _process(int(name), environment)) is not None:
                    processes[process.pid] = process
    return processes


def by_role(processes: dict[int, Process], root: int, launcher: str, workers: int) -> dict[str, list[int]]:
    """Return the pids of each role, the oldest first."""
    roles: dict[str, list[int]] = {}
    for process in sorted(processes.values(), key=lambda process: (process.born, process.pid)):
        role = _role(process, processes, root, launcher, workers)
        roles.setdefault(role, []).append(process.pid)
    return roles


def below(processes: dict[int, Process], pid: int) -> list[int]:
    """Return a process and all that it has started, as far as their parents live."""
    pids = [pid]
    for parent in pids:
        pids += [process.pid for process in processes.values() if process.parent == parent]
    return pids


def at_port(port: int) -> int | None:
    """Return the process whose own end of a TCP connection (IPv4) has this port; the oldest if several hold it."""
    with open("/proc/net/tcp") as file:
        rows = [line.split() for line in file.readlines()[1:]]
    sockets = {f"socket:[{row[9]}]" for row in rows if int(row[1].rpartition(":")[2], 16) == port}
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
        with contextlib.suppress(OSError):
            for fd in os.listdir(f"/proc/{pid}/fd"):
                if os.readlink(f"/proc/{pid}/fd/{fd}") in sockets:
                    return pid
    return None


def is_gone(pid: int) -> bool:
    """Return whether a process has ended, reaped or not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def describe(pids: Iterable[int]) -> list[str]:
    lines = []
    for pid in pids:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
            lines.append(f"{pid}: {file.read().replace(bytes(1), b' ').decode(errors='replace')[:160]}")
    return lines


def _process(pid: int, environment: list[bytes]) -> Process | None:
    with open(f"/proc/{pid}/stat") as file:
        words = file.read().rpartition(")")[2].split()
    if words[0] in "ZX":
        return None
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        command = file.read().replace(b"\0", b" ").decode(errors="replace")
    rank = next((entry[5:].decode() for entry in environment if entry.startswith(b"RANK=")), "")
    return Process(pid, int(words[1]), int(words[2]), int(words[3]), int(words[19]), command, rank, _stacks(pid) == 1)


def _stacks(pid: int) -> int:
    names = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            if match := _STACKS.match(os.readlink(f"/proc/{pid}/fd/{fd}")):
                names.add(match.group())
    return len(names)


def _role(process: Process, processes: dict[int, Process], root: int, launcher: str, workers: int) -> str:
    if process.pid == root:
        return "agent" if launcher == "torchrun" else "controller"
    if launcher == "torchrun" and process.parent == root and process.torchrun_rank:
        return "controller" if process.torchrun_rank == "0" else "member"
    if launcher == "ray" and (role := _role_under_ray(process.command)):
        return role
    if workers and process.parent == root and _WORKER in process.command:
        return "worker"
    if _is_keeper(process):
        return "guard" if launcher == "ray" and "spawned" not in process.command else "keeper"
    if process.group == process.pid:
        return (
            "rank" if process.has_stacks and not _has_forks(process, processes) else _role_of_fork(process, processes)
        )
    return "other"


def _is_keeper(process: Process) -> bool:
    """Return whether this is a keeper, if it is nothing that has its own session by its role."""
    return process.session == process.pid and any(part in process.command for part in _KEEPERS)


def _has_forks(process: Process, processes: dict[int, Process]) -> bool:
    """Return whether it has ranks of its own: a successor that starts one holds the rank's file for a moment."""
    children = [child for child in processes.values() if child.parent == process.pid]
    return any(child.group == child.pid and child.session == process.session for child in children)


def _role_of_fork(process: Process, processes: dict[int, Process]) -> str:
    parent = processes.get(process.session)
    return "successor" if parent is not None and _is_keeper(parent) else "other"


def _role_under_ray(command: str) -> str:
    if "/raylet/raylet" in command or "/gcs/gcs_server" in command:
        return "engine"
    if command.startswith("ray::KeeperActor"):
        return "actor"
    if "ray/_private" in command or "ray/dashboard" in command or command.startswith("ray::"):
        return "helper"
    return ""
