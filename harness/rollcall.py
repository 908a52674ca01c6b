"""The roll call: what each rank was doing when its world did not finish."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import IO

from everyrank.blame import ENDED, Blame, Evidence, blame
from everyrank.bounds import one_line
from everyrank.frames import Frame, is_ours, is_users, standing, waits
from everyrank.launch.protocol import STACKS_SIGNAL, Seat, read_all
from everyrank.world import few_ranks_text, ranks_text

#: A rank that runs at all answers within this, also on a busy machine.
_ANSWER = 0.5
#: So many readers of C frames run at a time.
_NATIVE_READERS = 4

_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)$')
#: As pystack writes it.
_NATIVE_FRAME = re.compile(
    r'^\s+\(C\) File "(?P<file>.*)", line (?P<line>\d+), in '
    r"(?P<function>.*?)(?: \(inlined\))? \((?P<library>[^()]*)\)$"
)
_THREAD = re.compile(r"^(?:Current thread|Thread) (?P<id>0x[0-9a-f]+)")

#: A headline holds so many groups of ranks; the rest are counted.
_GROUPS_IN_HEADLINE = 3

_NO_ANSWER = "not answering (no stack can be had)"

Stack = tuple[Frame, ...]  # innermost first


@dataclass(frozen=True)
class Stance:
    """One rank in a roll call."""

    rank: int
    stack: Stack  # the main thread's
    beside: tuple[Stack, ...] = ()  # those of its other threads that run the user's code: RPC calls, say
    state: str = ""  # what the kernel says, where that matters: stopped
    number: int | None = None  # which of its test's collectives of the default group it waits in, where that is known
    native: tuple[str, ...] = ()  # the C frames that it is in, innermost first, or why they are not known

    @property
    def doing(self) -> str:
        told = _doing(self.stack) if self.stack else _NO_ANSWER
        return f"{told}, {self.state}" if self.state else told

    def sentence(self, ranks: list[int]) -> str:
        """The same of these ranks: ``ranks 0,2,3 wait in all_reduce at test_x.py:25``."""
        one = len(ranks) == 1
        doing = self.doing.removeprefix("waiting ")
        verb = ("is" if one else "are") if doing == self.doing else "waits" if one else "wait"
        return f"{few_ranks_text(ranks)} {verb} {doing}"

    @property
    def evidence(self) -> Evidence:
        """What this says of who is to blame. A rank that is stopped keeps others waiting, wherever it is."""
        operation, _, where = standing(self.stack).rpartition(" at ")
        held = False if self.state else waits(self.stack)
        return Evidence(self.rank, waits=held, operation=operation, where=where, number=self.number)


def _doing(stack: Stack) -> str:
    """Who is in a library's function waits, as far as can be told; who is in the user's own code may not."""
    waits = not is_users(stack[0].file)
    return f"{'waiting ' if waits else ''}in {standing(stack)}"


@dataclass(frozen=True)
class Asked:
    """Who is asked, and where the answer is written."""

    pid: int | None
    stacks: IO[bytes]


def call(seats: dict[int, Seat], native_within: float = 0.0) -> list[Stance]:
    """Ask every rank that is still there. With ``native_within``, also for C frames, for that long at most."""
    return ask({rank: Asked(seat.pid, seat.output.stacks) for rank, seat in seats.items()}, native_within)


def ask(seats: dict[int, Asked], native_within: float = 0.0, stop: bool = True) -> list[Stance]:
    """The same, of a world that may go on afterwards: without ``stop``, no rank is held up for the others."""
    states = {rank: _state(seat.pid) for rank, seat in seats.items()}
    # The signal ends a sleep in C, and one rank that goes on lets others go on: nobody moves until all are asked.
    if stop:
        _signal(seats, signal.SIGSTOP)
    natives: dict[int, tuple[str, ...]] = {}
    if native_within and len(seats) <= _NATIVE_READERS:
        natives = read_natives({rank: seat.pid for rank, seat in seats.items()}, native_within)
    before = {rank: _size(seat) for rank, seat in seats.items()}
    _signal(seats, STACKS_SIGNAL)  # each answers as the first thing when it goes on
    if stop:
        _signal(seats, signal.SIGCONT)
    _await_answers(seats, before)
    stances = [
        Stance(rank, *parse(read_all(seat.stacks)), state=states[rank]) for rank, seat in sorted(seats.items())
    ]
    if native_within and len(seats) > _NATIVE_READERS:
        # Reading costs 0.3 s and more of a core, and the bound on a world's end holds: a few tell for all.
        blamed = blame([stance.evidence for stance in stances])
        asked = [group[0].rank for _, group in groups(stances, blamed)][:_NATIVE_READERS]
        natives = read_natives({rank: seats[rank].pid for rank in asked}, native_within)
    return [replace(stance, native=natives.get(stance.rank, ())) for stance in stances]


def _signal(seats: dict[int, Asked], number: int) -> None:
    for seat in seats.values():
        if seat.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(seat.pid, number)


def _await_answers(seats: dict[int, Asked], before: dict[int, int]) -> None:
    until = time.monotonic() + _ANSWER
    last: dict[int, int] = {}
    while time.monotonic() < until:
        sizes = {rank: _size(seat) for rank, seat in seats.items()}
        if sizes == last and all(sizes[rank] > before[rank] for rank in seats):
            return
        last = sizes
        time.sleep(0.005)


def _size(seat: Asked) -> int:
    return os.fstat(seat.stacks.fileno()).st_size


def parse(text: str) -> tuple[Stack, tuple[Stack, ...]]:
    """The main thread of the last dump in what faulthandler wrote, and the others that run the user's code."""
    stacks: list[tuple[str, list[Frame]]] = []
    for line in text.splitlines():
        if thread := _THREAD.match(line):
            stacks.append((thread["id"], []))
        elif (match := _FRAME.match(line)) and stacks:
            number = int(match["line"]) if match["line"].isdigit() else 0
            stacks[-1][1].append(Frame(match["file"], number, match["function"]))
    if not stacks:
        return (), ()
    # The main thread ends each dump.
    main, stack = stacks.pop()
    ends = [number for number, (thread, _) in enumerate(stacks) if thread == main]
    others = [tuple(frames) for _, frames in stacks[ends[-1] + 1 if ends else 0 :]]
    return tuple(stack), tuple(other for other in others if any(is_users(frame.file) for frame in other))


def _state(pid: int | None) -> str:
    """``stopped`` for a process that SIGSTOP holds."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as file:
        return "stopped" if file.read().rpartition(")")[2].split()[0] in "Tt" else ""
    return ""


def native_reader() -> str:
    """The program that reads C frames, or nothing."""
    beside = os.path.join(os.path.dirname(sys.executable), "pystack")
    return beside if os.access(beside, os.X_OK) else shutil.which("pystack") or ""


def read_natives(pids: dict[int, int | None], within: float) -> dict[int, tuple[str, ...]]:
    """The C frames that these ranks are in, or why they cannot be had."""
    reader = native_reader()
    if not reader:
        return {}
    until = time.monotonic() + within
    running = {
        rank: subprocess.Popen(
            [reader, "remote", "--native-last", "--no-color", str(pid)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
        )
        for rank, pid in pids.items()
        if pid
    }
    found = {}
    for rank, process in running.items():
        try:
            text, _ = process.communicate(timeout=max(0.01, until - time.monotonic()))
            found[rank] = native_frames(text, pids[rank])
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            found[rank] = (f"(not known: pystack took longer than {within:g} s)",)
    return found


def groups(stances: Iterable[Stance], blamed: Blame) -> list[tuple[str, list[Stance]]]:
    """Who stands together; those to blame come first, then by rank."""
    together: dict[str, list[Stance]] = {}
    for stance in stances:
        together.setdefault(stance.doing, []).append(stance)
    return sorted(together.items(), key=lambda group: (group[1][0].rank not in blamed.ranks, group[1][0].rank))


def folded(stances: Iterable[Stance], blamed: Blame) -> list[str]:
    """One line a group: ``ranks 0,2,3 are waiting in all_reduce at test_x.py:12``."""
    lines = []
    for doing, group in groups(stances, blamed):
        verb = "is" if len(group) == 1 else "are"
        lines.append(f"{ranks_text([stance.rank for stance in group])} {verb} {doing}")
    return lines


def cause(stances: list[Stance], blamed: Blame) -> str:
    """Why a world did not finish, in one line: who is where, those to blame first."""
    clauses = [group[0].sentence([stance.rank for stance in group]) for _, group in groups(stances, blamed)]
    if blamed.rule == ENDED:
        ranks = list(blamed.ranks)
        clauses.insert(0, f"{few_ranks_text(ranks)} ended {'its' if len(ranks) == 1 else 'their'} test")
    more = len(clauses) - _GROUPS_IN_HEADLINE
    if more > 0:
        clauses[_GROUPS_IN_HEADLINE:] = [f"and {more} more group{'s' if more > 1 else ''}"]
    return "; ".join(clauses)


def told(stances: list[Stance], blamed: Blame, cause_is_known: bool = False) -> str:
    """The whole roll call: who is where, then each group's stack. Nobody needs native frames for a known cause."""
    if not stances:
        return "no rank is left to ask"
    lines = folded(stances, blamed)
    for _, group in groups(stances, blamed):
        lines += ["", f"{ranks_text([stance.rank for stance in group])}, innermost frame first:"]
        lines += [f"  {frame.function} at {frame}" for frame in until_pytest(group[0].stack)]
        lines += _beside(group)
        native = next((stance for stance in group if stance.native), None)
        if native is not None:
            lines += [f"  native frames of rank {native.rank}:", *(f"    {frame}" for frame in native.native)]
    wanted = not cause_is_known and not native_reader()
    if wanted and any(stance.doing.startswith("waiting") for stance in stances):
        lines += ["", "(native frames: install everyrank[native])"]
    return "\n".join(lines)


def _beside(group: list[Stance]) -> list[str]:
    """What other threads of these ranks are at in the user's code: a line for each place."""
    places: dict[str, list[int]] = {}
    for stance in group:
        for stack in stance.beside:
            places.setdefault(_doing(stack), []).append(stance.rank)
    lines = []
    for doing, ranks in places.items():
        who = "another thread" if len(ranks) == 1 else f"{len(ranks)} other threads"
        verb = "is" if len(ranks) == 1 else "are"
        lines.append(f"  {who} of {ranks_text(sorted(set(ranks)))} {verb} {doing}")
    return lines


def until_pytest(stack: Stack) -> list[Frame]:
    """The stack down to where pytest called the user's code."""
    users = [number for number, frame in enumerate(stack) if is_users(frame.file)]
    ours = [number for number, frame in enumerate(stack) if is_ours(frame.file)]
    return list(stack[: users[-1] + 1] if users else stack[: ours[0] + 1] if ours else stack[:20])


def native_frames(text: str, pid: int | None, most: int = 24) -> tuple[str, ...]:
    """The C frames of the main thread in what pystack says, innermost first."""
    frames: list[str] = []
    mains = False
    for line in text.splitlines():
        if line.startswith("Traceback for thread"):
            mains = line.split()[3] == str(pid)
        elif mains and (match := _NATIVE_FRAME.match(line)):
            known = f"at {os.path.basename(match['file'])}:{match['line']}" if match["line"] != "0" else ""
            where = known or f"in {os.path.basename(match['library'])}"
            frames.append(f"{one_line(match['function'], 100)} {where}")
    if "Traceback for thread" not in text:
        return (f"(not known: {one_line(text.strip().rsplit(chr(10), 1)[-1] or 'pystack said nothing')})",)
    return tuple(frames[::-1][:most])


def fatal(text: str) -> str:
    """What faulthandler wrote at a fatal signal, without the frames of pytest and of this harness."""
    kept: list[str] = []
    stack: list[tuple[str, str]] = []  # lines and files
    for line in [*text.splitlines(), ""]:
        if match := _FRAME.match(line):
            stack.append((line, match["file"]))
            continue
        if stack and all(is_ours(file) for _, file in stack):  # a rank's witness
            while kept and not _THREAD.match(kept.pop()):
                pass
            stack = []
            continue
        users = [number for number, (_, file) in enumerate(stack) if is_users(file)]
        kept += [frame for frame, _ in stack[: users[-1] + 1 if users else None]]
        stack = []
        if not line.startswith("Extension modules: "):
            kept.append(line)
    return "\n".join(kept).strip("\n")
