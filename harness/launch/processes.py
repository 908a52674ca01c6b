"""What the controller asks of processes on its own host: processor time, whether they end, and their stacks."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO

from everyrank import proc_stat
from everyrank.launch import children, native
from everyrank.launch.protocol import NATIVE_READERS, STACKS_SIGNAL, AskedStacks, read_all
from everyrank.patience import CoreWaits, Patience

#: A rank answers within this many seconds, and at most so many if it waits for a core.
_ANSWER, _MOST = 0.5, 20.0


def is_ending(pid: int) -> bool:
    """Return whether a process has ended or was killed. Its socket may still be open for a moment.

    Between the signal, which it takes, and its end the system shows neither for a few microseconds; but from before
    its first socket closes.
    """
    stat = proc_stat.find(pid)
    return stat.is_ending if stat is not None else os.path.isdir("/proc/self")


def processor_time(pid: int | None) -> tuple[float, bool]:
    """Return the processor time of a process and its children, in seconds, and whether one of their threads runs
    or waits for a disk now."""
    used, wants = 0, False
    families = [str(pid)]
    while families:
        process = families.pop()
        with contextlib.suppress(OSError):  # the process is gone, or this is not Linux
            for thread in os.listdir(f"/proc/{process}/task"):
                stat = proc_stat.read(f"/proc/{process}/task/{thread}/stat")
                used += stat.ticks
                wants = wants or stat.is_busy
                with open(f"/proc/{process}/task/{thread}/children") as file:
                    families += file.read().split()
    return used / os.sysconf("SC_CLK_TCK"), wants


@dataclass(frozen=True)
class AskedProcess:
    """A process that is asked for its stacks, and the file to which it writes them."""

    pid: int | None
    stacks: IO[bytes]


def stop(processes: Mapping[int, AskedProcess]) -> dict[int, str]:
    """Stop these ranks, before one of them is asked: one that continues may let others continue.

    Return their states before, for ``ask``.
    """
    states = {rank: state(process.pid) for rank, process in processes.items()}
    _signal(processes, signal.SIGSTOP)
    return states


def ask(
    processes: Mapping[int, AskedProcess], native_within: float = 0.0, stopped: Mapping[int, str] | None = None
) -> dict[int, AskedStacks]:
    """Ask these ranks for their stacks; with ``native_within``, also read the C frames of a few.

    ``stopped`` is what ``stop`` returned. Without it no process is stopped, so that its world can go on.
    """
    states = stopped or {rank: state(process.pid) for rank, process in processes.items()}
    natives: dict[int, tuple[str, ...]] = {}
    if native_within and len(processes) <= NATIVE_READERS:
        natives = native.read({rank: process.pid for rank, process in processes.items()}, native_within)
    before = {rank: _size(process) for rank, process in processes.items()}
    _signal(processes, STACKS_SIGNAL)  # each rank answers before it does anything else
    if stopped:
        _signal(processes, signal.SIGCONT)
    _await_answers(processes, before)
    texts = {rank: read_all(process.stacks) for rank, process in processes.items()}
    asked = children.ask({rank: (process.pid, process.stacks) for rank, process in processes.items()})
    return {
        rank: AskedStacks(text, states.get(rank, ""), natives.get(rank, ()), asked.get(rank, ()))
        for rank, text in texts.items()
    }


def _signal(processes: Mapping[int, AskedProcess], number: int) -> None:
    for process in processes.values():
        if process.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number)


def _await_answers(processes: Mapping[int, AskedProcess], before: dict[int, int]) -> None:
    patience = Patience(_ANSWER, CoreWaits(process.pid for process in processes.values()), _MOST)
    last = before
    while patience.turn():
        sizes = {rank: _size(process) for rank, process in processes.items()}
        if sizes == last and all(sizes[rank] != before[rank] for rank in processes):
            return
        last = sizes
        time.sleep(0.005)


def _size(process: AskedProcess) -> int:
    return os.fstat(process.stacks.fileno()).st_size


def state(pid: int | None) -> str:
    """Return "stopped" for a process that a signal or a tracer has stopped."""
    stat = proc_stat.find(pid)
    return "stopped" if stat is not None and stat.is_stopped else ""
