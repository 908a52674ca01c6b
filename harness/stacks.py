"""``everyrank stacks PID``: a roll call of worlds that run, from outside.

A rank is found by what it holds: each has a nameless file for its stacks, whose name the kernel shows and which says
what rank of what world it is. It is asked by the signal that the controller would use, and is not stopped for it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from everyrank import rollcall
from everyrank.blame import Evidence, blame
from everyrank.frames import is_ours, is_users
from everyrank.launch.protocol import STACKS_SIGNAL, stacks_name
from everyrank.paths import shown
from everyrank.rollcall import Stance
from everyrank.world import ranks_text

_NAME = re.compile(re.escape("/memfd:") + stacks_name(r"(?P<world>\d+)", r"(?P<rank>\d+)", r"(?P<size>\d+)"))

#: How long a reader of C frames may take, where they are asked for.
_NATIVE = 10.0


@dataclass(frozen=True)
class Found:
    """A rank of a world that runs."""

    pid: int
    controller: int
    world: int
    rank: int
    size: int
    stacks: str  # the path of its stacks


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="everyrank stacks", description="What every rank of a running test is doing just now."
    )
    parser.add_argument("pid", type=int, help="of a pytest process, or of one rank")
    parser.add_argument("--native", action="store_true", help="C frames too, which stops each rank for a moment")
    options = parser.parse_args(arguments)
    problem, ranks = found(options.pid)
    if problem:
        print(f"everyrank: {problem}", file=sys.stderr)
        return 1
    worlds: dict[tuple[int, int], list[Found]] = {}
    for one in ranks:
        worlds.setdefault((one.controller, one.world), []).append(one)
    print("\n\n".join(_told(world, options.native) for _, world in sorted(worlds.items())))
    return 0


def found(pid: int) -> tuple[str, list[Found]]:
    """Why there is nobody to ask, or the ranks: those of a rank's own world, or of all worlds below a process."""
    if not os.path.isdir("/proc/self/fd"):
        return f"stacks needs Linux: {sys.platform} does not tell what a process holds", []
    parents = _parents()
    if pid not in parents:
        return f"there is no process {pid}", []
    itself = _rank(pid, parents)
    if itself is not None:
        below = _below(itself.controller, parents)
        ranks = [rank for one in below if (rank := _rank(one, parents)) is not None]
        return "", [rank for rank in ranks if (rank.controller, rank.world) == (itself.controller, itself.world)]
    ranks = [rank for one in _below(pid, parents) if (rank := _rank(one, parents)) is not None]
    return ("" if ranks else f"process {pid} is no rank, and no rank of everyrank's runs below it"), ranks


def _parents() -> dict[int, int]:
    """The parent of every process that we can see."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError), open(f"/proc/{name}/stat") as file:
                parents[int(name)] = int(file.read().rpartition(")")[2].split()[1])
    return parents


def _below(pid: int, parents: dict[int, int]) -> list[int]:
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return sorted(found[1:])


def _rank(pid: int, parents: dict[int, int]) -> Found | None:
    """A process is a rank if it leads its group and holds the stacks of one; a fork of it does not lead, and the
    controller holds those of all."""
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
    return Found(pid, parents.get(keeper, 0), int(match["world"]), int(match["rank"]), int(match["size"]), path)


def _told(world: list[Found], native: bool) -> str:
    """One world: which test it runs, and its roll call."""
    size, controller = world[0].size, world[0].controller
    head = f"world of {size} rank{'s' if size > 1 else ''}, pytest process {controller}"
    first = {one.rank: one for one in sorted(world, key=lambda one: one.pid, reverse=True)}  # a fork came later
    with contextlib.ExitStack() as stack:
        asked = {}
        for rank, one in first.items():
            with contextlib.suppress(OSError):
                if _answers(one.pid):
                    asked[rank] = rollcall.Asked(one.pid, stack.enter_context(open(one.stacks, "rb", buffering=0)))
        stances = rollcall.ask(asked, _NATIVE if native else 0.0, stop=False)
    lines = [f"rank {rank} has not come up yet" for rank in sorted(first.keys() - asked.keys())]
    lines += [f"rank {rank} is gone" for rank in sorted(set(range(size)) - first.keys())]
    done = [stance.rank for stance in stances if _waits_for_orders(stance)]
    if len(done) == size:
        return f"{head}: idle, kept for a further test"
    if done:
        lines.append(f"{ranks_text(done)} {'has' if len(done) == 1 else 'have'} ended the test")
    inside = [stance for stance in stances if stance.rank not in done]
    tests = [frame for stance in inside for frame in stance.stack[::-1] if is_users(frame.file)]
    if tests:
        head += f", in {tests[0].function} ({shown(tests[0].file)})"
    if inside:
        ended = [Evidence(rank, ended=True) for rank in done]
        lines.append(rollcall.told(inside, blame([*ended, *(stance.evidence for stance in inside)])))
    return "\n".join([head, *lines])


def _answers(pid: int) -> bool:
    """Whether the process has a handler for the signal, which would end it otherwise."""
    with open(f"/proc/{pid}/status") as file:
        caught = next(line for line in file if line.startswith("SigCgt:")).split()[1]
    return bool(int(caught, 16) >> (STACKS_SIGNAL - 1) & 1)


def _waits_for_orders(stance: Stance) -> bool:
    """Whether it is in the harness only: no test runs there."""
    ours = [frame.function for frame in stance.stack if is_ours(frame.file)]
    return "serve" in ours and "run" not in ours
