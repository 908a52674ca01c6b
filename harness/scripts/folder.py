"""The folder of one run of a script: by its files the ranks, their watcher and the test hear of each other.

Files, not sockets: a rank that writes one waits for nobody, and the watcher reads what a dead rank has written.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import msgspec
from everyrank import proc_stat
from everyrank.patience import Patience
from everyrank.wire import torchrun_variables

#: The variable that names the folder of a test, in which each run of a script has one of its own.
VARIABLE = "EVERYRANK_SCRIPTS"
#: The variable that names the pytest process of the test.
PYTEST = "EVERYRANK_SCRIPTS_PYTEST"
#: Only a watcher that was killed lets others wait for so many seconds, or a machine that has no time for it.
_VERDICT = 20.0

Struct = TypeVar("Struct", bound=msgspec.Struct)


class ScriptRank(msgspec.Struct, frozen=True):
    """A process of torchrun that runs the script as one rank."""

    rank: int
    size: int
    pid: int
    agent: int  # the process of torchrun that started it
    script: str
    error_file: str  # torchrun shows what this file has when the rank has failed
    pytest: str = ""  # as ``process_name`` names it


class Raised(msgspec.Struct, frozen=True):
    """The exception that ended a rank."""

    brief: str
    location: str
    signature: str
    time: float  # by the monotonic clock


class Status(msgspec.Struct, frozen=True):
    """How a process has ended, as its parent sees it: a wait status."""

    status: int


class ScriptFolder:
    """The files of one run of a script."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def announce(self, process: ScriptRank) -> bool:
        """Leave word that this process is a rank. Return False if another process is it: this one's parent."""
        self.path.mkdir(parents=True, exist_ok=True)
        return self.take(f"pid-of-{process.rank}") and self.write(f"rank-{process.rank}", process)

    def ranks(self) -> dict[int, ScriptRank]:
        """Return the ranks that have announced themselves."""
        processes = [self.read(path.name, ScriptRank) for path in self.path.glob("rank-*")]
        return {process.rank: process for process in processes if process is not None}

    def take(self, name: str) -> bool:
        """Return whether this process is the first that asks for this name."""
        try:
            os.close(os.open(self.path / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        except FileExistsError:
            return False
        return True

    def write(self, name: str, value: msgspec.Struct | str) -> bool:
        """Write a file that is never read half. Return True."""
        data = value.encode() if isinstance(value, str) else msgspec.json.encode(value)
        half = self.path / f"half-{os.getpid()}-{name}"
        half.write_bytes(data)
        half.replace(self.path / name)
        return True

    def read(self, name: str, kind: type[Struct]) -> Struct | None:
        with contextlib.suppress(OSError, msgspec.DecodeError):
            return msgspec.json.decode((self.path / name).read_bytes(), type=kind)
        return None

    def text(self, name: str) -> str:
        with contextlib.suppress(OSError):
            return (self.path / name).read_text()
        return ""

    def has(self, name: str) -> bool:
        return (self.path / name).exists()

    def await_verdict(self) -> None:
        """Wait until the watcher has asked all ranks, which takes a moment, or has ended."""
        patience = Patience(_VERDICT)
        while not (self.has("verdict") or self.has("over")) and patience.turn():
            time.sleep(0.01)


def process_name(pid: int | str = "self") -> str:
    """Return a name that no other process has, on any host or in any container; "" if there is no such process."""
    with contextlib.suppress(OSError):
        namespace = os.stat("/proc/self/ns/pid").st_ino
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        stat = proc_stat.read(f"/proc/{pid}/stat")
        if not stat.has_ended:
            return f"{stat.pid} {stat.born} {namespace} {boot}"
    return ""


def has_ended(name: str) -> bool:
    """Return whether the process of this name has ended. One that cannot be seen from here counts as living."""
    if not name or name.split()[2:] != process_name().split()[2:]:
        return False
    return process_name(name.partition(" ")[0]) != name


def folder_of_run(variables: Mapping[str, str], agent: int) -> ScriptFolder | None:
    """Return the folder of the run that a process with these variables belongs to, if it is a script's rank."""
    parts = torchrun_variables.run_of_script(variables, agent)
    if not variables.get(VARIABLE) or not parts:
        return None
    return ScriptFolder(Path(variables[VARIABLE], hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]))


def runs(folder: Path) -> list[ScriptFolder]:
    """Return the folders of all runs of scripts in a test, the oldest first."""
    with contextlib.suppress(OSError):
        return [ScriptFolder(path) for path in sorted(folder.iterdir(), key=lambda path: path.stat().st_ctime)]
    return []
