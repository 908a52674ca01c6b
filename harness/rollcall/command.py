"""``everyrank stacks PID``: make a roll call of running worlds from another process. Without a pid, list the runs.

Each rank holds a nameless file for its stacks. The kernel shows its name, which holds the numbers of the world and of
the rank. A rank is asked by the same signal that the controller uses, and is not stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from everyrank import proc_stat
from everyrank.launch import children, native, processes
from everyrank.launch.local import stacks_name
from everyrank.model.counts import count
from everyrank.model.ranks import ranks_text
from everyrank.rollcall import rollcall, running
from everyrank.rollcall.blame import Evidence, blame
from everyrank.rollcall.rollcall import Stance
from everyrank.stack.frames import is_ours, is_users
from everyrank.stack.paths import shown

_NAME = re.compile(re.escape("/memfd:") + stacks_name(r"(?P<world>\d+)", r"(?P<rank>\d+)", r"(?P<size>\d+)"))

#: The time limit, in seconds, for reading C frames.
_NATIVE = 10.0


@dataclass(frozen=True)
class RunningRank:
    """A rank of a world that is running."""

    pid: int
    controller: int
    world: int
    rank: int
    size: int
    stacks: str  # the path of the file with its stacks


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="everyrank stacks", description="Show what every rank of a running test is doing now."
    )
    parser.add_argument(
        "pid", type=int, nargs="?", help="the pid of a pytest process, or of one rank (default: list what runs here)"
    )
    parser.add_argument("--native", action="store_true", help="show C frames too, which stops each rank for a moment")
    options = parser.parse_args(arguments)
    if options.pid is None and options.native:
        parser.error("--native needs a pid")
    problem, ranks = find_ranks(options.pid)
    if problem:
        print(f"everyrank: {problem}", file=sys.stderr)
        return 1
    if options.pid is None:
        print(running.describe(running.runs((rank.controller, rank.world, rank.size) for rank in ranks)))
        return 0
    worlds: dict[tuple[int, int], list[RunningRank]] = {}
    for rank in ranks:
        worlds.setdefault((rank.controller, rank.world), []).append(rank)
    print("\n\n".join(_render_world(world, options.native) for _, world in sorted(worlds.items())))
    return 0


def find_ranks(pid: int | None) -> tuple[str, list[RunningRank]]:
    """Return the ranks of a rank's own world, or of all worlds below a process (None: any); or why there are none."""
    if not os.path.isdir("/proc/self/fd"):
        return f"stacks needs Linux: {sys.platform} does not show which files a process holds", []
    parents = _parents()
    if pid is None:
        return "", [rank for process in parents if (rank := _rank(process, parents)) is not None]
    if pid not in parents:
        return f"there is no process {pid}", []
    itself = _rank(pid, parents)
    if itself is not None:
        below = _below(itself.controller, parents)
        ranks = [rank for child in below if (rank := _rank(child, parents)) is not None]
        return "", [rank for rank in ranks if (rank.controller, rank.world) == (itself.controller, itself.world)]
    ranks = [rank for child in _below(pid, parents) if (rank := _rank(child, parents)) is not None]
    return ("" if ranks else f"process {pid} is not a rank of everyrank, and has no rank below it"), ranks


def _parents() -> dict[int, int]:
    """Return the parent of every process that we can see."""
    stats = [proc_stat.find(name) for name in os.listdir("/proc") if name.isdigit()]
    return {stat.pid: stat.parent for stat in stats if stat is not None}


def _below(pid: int, parents: dict[int, int]) -> list[int]:
    family = [pid]
    for ancestor in family:
        family += [child for child, parent in parents.items() if parent == ancestor]
    return sorted(family[1:])


def _rank(pid: int, parents: dict[int, int]) -> RunningRank | None:
    """Return the rank that a process is, or None.

    A rank leads its process group and holds exactly one file of stacks. A fork of a rank does not lead its group, and
    the controller holds the files of all ranks.
    """
    names = {}
    with contextlib.suppress(OSError):
        if os.getpgid(pid) != pid:
            return None
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if match := _NAME.match(os.readlink(f"/proc/{pid}/fd/{fd}")):
                    names[match.groups()] = (match, f"/proc/{pid}/fd/{fd}")
    keeper = parents.get(pid, 0)
    if len(names) != 1 or not keeper:
        return None
    match, path = next(iter(names.values()))
    return RunningRank(pid, parents.get(keeper, 0), int(match["world"]), int(match["rank"]), int(match["size"]), path)


def _render_world(world: list[RunningRank], native_too: bool) -> str:
    """Render one world: the test that it runs, and its roll call."""
    size, controller = world[0].size, world[0].controller
    head = f"world of {count(size, 'rank')}, pytest process {controller}"
    # A fork has a higher pid.
    first = {process.rank: process for process in sorted(world, key=lambda process: process.pid, reverse=True)}
    with contextlib.ExitStack() as stack:
        asked = {}
        for rank, process in first.items():
            with contextlib.suppress(OSError):
                if children.handles_signal(process.pid):
                    file = stack.enter_context(open(process.stacks, "rb", buffering=0))
                    asked[rank] = processes.AskedProcess(process.pid, file)
        stances = rollcall.read(processes.ask(asked, _NATIVE if native_too else 0.0))
        if native_too:
            stances = rollcall.with_native(
                stances, lambda ranks: native.read({rank: asked[rank].pid for rank in ranks}, _NATIVE)
            )
    lines = [f"rank {rank} has not started yet" for rank in sorted(first.keys() - asked.keys())]
    lines += [f"rank {rank} is gone" for rank in sorted(set(range(size)) - first.keys())]
    done = [stance.rank for stance in stances if _waits_for_orders(stance)]
    if len(done) == size:
        return f"{head}: idle, kept for another test"
    if done:
        lines.append(f"{ranks_text(done)} {'has' if len(done) == 1 else 'have'} ended the test")
    inside = [stance for stance in stances if stance.rank not in done]
    tests = [frame for stance in inside for frame in stance.stack[::-1] if is_users(frame.file)]
    if tests:
        head += f", in {tests[0].function} ({shown(tests[0].file)})"
    if inside:
        ended = [Evidence(rank, ended=True) for rank in done]
        lines.append(rollcall.render(inside, blame([*ended, *(stance.evidence for stance in inside)])))
    return "\n".join([head, *lines])


def _waits_for_orders(stance: Stance) -> bool:
    """Return whether a rank waits for an order: it is in the harness, and in no test."""
    functions = [frame.function for frame in stance.stack if is_ours(frame.file)]
    return "serve" in functions and "run" not in functions
