"""What runs on this machine: each pytest process that has ranks, its test, and since when.

No rank is asked: the test stands in the note of the slots that it holds.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from everyrank.model.counts import count
from everyrank.resources import holders
from everyrank.resources.holders import Holder


@dataclass(frozen=True)
class Run:
    """A pytest process that has ranks."""

    pid: int
    command: str  # of the pytest that a person started, which is another process if this is a worker
    folder: str  # in which it runs
    sizes: tuple[int, ...]  # of its worlds
    born: float  # by the wall clock
    holder: Holder | None  # of the slots of its test; none between two tests, and if its ranks run elsewhere


def runs(ranks: Iterable[tuple[int, int, int]]) -> list[Run]:
    """Return the runs of these ranks, each given by its controller, its world, and the size of that."""
    worlds: dict[int, dict[int, int]] = {}
    for controller, world, size in ranks:
        worlds.setdefault(controller, {})[world] = size
    return [_run(pid, tuple(sizes.values()), _note(pid)) for pid, sizes in sorted(worlds.items())]


def describe(runs: Sequence[Run]) -> str:
    """Describe runs as lines of text."""
    if not runs:
        return "no multi-rank test runs on this machine, as far as you may see its processes"
    lines = []
    now = time.time()
    for run in runs:
        lines.append(f"pytest {run.pid}, for {_seconds(now - run.born)}, in {run.folder}: {run.command}")
        *others, last = run.sizes
        sizes = " and ".join([*map(str, others), count(last, "rank")])
        world = f"worlds of {sizes}" if others else f"a world of {sizes}"
        if run.holder is None:
            lines.append(f"    has {world}")
        else:
            lines.append(f"    has {world}, for {_seconds(now - run.holder.since)} in {run.holder.test}")
    return "\n".join([*lines, "", "everyrank stacks PID shows what the ranks of such a process are doing."])


def _seconds(seconds: float) -> str:
    return f"{max(0, round(seconds)):,} s"


def _note(pid: int) -> Holder | None:
    """Return what a process has written into the files of its slots. It has them open, wherever they are."""
    with contextlib.suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                path = Path(os.readlink(f"/proc/{pid}/fd/{fd}"))
                if re.fullmatch(r"cpu-\d+", path.name) and (holder := holders.read(path)) and holder.pid == pid:
                    return holder
    return None


def _run(pid: int, sizes: tuple[int, ...], holder: Holder | None) -> Run:
    process = f"/proc/{pid}"
    folder = command = "?"
    born = time.time()
    with contextlib.suppress(OSError):
        folder = os.readlink(f"{process}/cwd")
        command = Path(f"/proc/{holder.run if holder else pid}/cmdline").read_text(errors="replace")
        born -= float(Path("/proc/uptime").read_text().split()[0]) - holders.born(pid) / os.sysconf("SC_CLK_TCK")
    return Run(pid, " ".join(command.split("\0")).strip(), folder, sizes, born, holder)
