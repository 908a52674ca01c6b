"""What a run has left: processes, files in its temp folder, names in shared memory, leases."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.kills import processes

#: What ends with a run may take this many seconds to do so. Ray's agents look now and then whether their node lives.
WITHIN = 30.0
WITHIN_RAY = 120.0

#: What others leave: pytest keeps the folders of its last runs, Ray its logs, a killed agent of torchrun its own.
_OF_OTHERS = ("pytest-of-", "ray", "torchelastic_", "torchinductor_")


def found(marker: str, temp: Path, leases: Path, before: set[str], pids: set[int], within: float) -> list[str]:
    """Wait until nothing of a run is left, for so many seconds, and return what is left even so."""
    until = time.monotonic() + within
    folders = set(os.listdir(temp))
    while things := _things(marker, temp, leases, before, pids, folders):
        if time.monotonic() > until:
            break
        time.sleep(0.02)
    return things


def shared_memory() -> set[str]:
    with contextlib.suppress(OSError):
        return set(os.listdir("/dev/shm"))
    return set()


def end(marker: str) -> None:
    """End what still runs."""
    until = time.monotonic() + 10
    while (pids := list(processes.found(marker))) and time.monotonic() < until:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def stacks(marker: str) -> str:
    """Return what the processes of a run are doing, for a run that does not end."""
    tool = shutil.which("pystack", path=os.path.dirname(sys.executable))
    texts = []
    for pid in processes.found(marker):
        texts += processes.describe([pid])
        if tool:
            with contextlib.suppress(subprocess.TimeoutExpired):
                command = [tool, "remote", "--no-block", str(pid)]
                done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
                texts.append(done.stdout + done.stderr)
    return "\n".join(texts)


def _things(marker: str, temp: Path, leases: Path, before: set[str], pids: set[int], folders: set[str]) -> list[str]:
    things = [f"process {line}" for line in processes.describe(processes.found(marker))]
    things += [f"{temp.name}/{name}" for name in sorted(os.listdir(temp)) if not name.startswith(_OF_OTHERS)]
    for name in sorted(shared_memory() - before):
        # Other programs use the folder too: what is this run's has its folder's name, or a pid of it.
        if any(folder in name for folder in folders) or pids & {int(digits) for digits in re.findall(r"\d+", name)}:
            things.append(f"/dev/shm/{name}")
    return things + [f"lease {path.name}" for path in sorted(leases.glob("cpu-*")) if _is_held(path)]


def _is_held(path: Path) -> bool:
    with contextlib.suppress(FileNotFoundError), open(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
