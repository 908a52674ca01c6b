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

from everyrank.launch.protocol import STACKS_SIGNAL, Seat, read_all
from everyrank.model.ranks import few_ranks_text, ranks_text
from everyrank.rollcall.blame import ENDED, Blame, Evidence, blame
from everyrank.stack.frames import Frame, is_ours, is_users, standing, waits
from everyrank.wire.truncate import one_line

#: A rank that runs answers within this many seconds, also on a busy machine.
_ANSWER = 0.5
#: At most this many readers of C frames run at a time.
_NATIVE_READERS = 4

_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)$')
#: A C frame as pystack writes it.
_NATIVE_FRAME = re.compile(
    r'^\s+\(C\) File "(?P<file>.*)", line (?P<line>\d+), in '
    r"(?P<function>.*?)(?: \(inlined\))? \((?P<library>[^()]*)\)$"
)
_THREAD = re.compile(r"^(?:Current thread|Thread) (?P<id>0x[0-9a-f]+)")

#: A headline describes this many groups of ranks, and counts the rest.
_GROUPS_IN_HEADLINE = 3

_NO_ANSWER = "not answering (no stack available)"

Stack = tuple[Frame, ...]  # innermost first


@dataclass(frozen=True)
class Stance:
    """One rank in a roll call."""

    rank: int
    stack: Stack  # the main thread's
    beside: tuple[Stack, ...] = ()  # the stacks of other threads that run the user's code, such as RPC calls
    state: str = ""  # "stopped" if a signal holds the process
    number: int | None = None  # the number of the collective of the default group that it waits in, if known
    native: tuple[str, ...] = ()  # its C frames, innermost first, or why they are unknown

    @property
    def doing(self) -> str:
        doing = _doing(self.stack) if self.stack else _NO_ANSWER
        return f"{doing}, {self.state}" if self.state else doing

    def sentence(self, ranks: list[int]) -> str:
        """Return a clause about ranks that share this stance: ``ranks 0,2,3 wait in all_reduce at test_x.py:25``."""
        single = len(ranks) == 1
        doing = self.doing.removeprefix("waiting ")
        verb = ("is" if single else "are") if doing == self.doing else "waits" if single else "wait"
        return f"{few_ranks_text(ranks)} {verb} {doing}"

    @property
    def evidence(self) -> Evidence:
        """Return the evidence for blame. A rank that is stopped keeps others waiting, wherever it is."""
        operation, _, location = standing(self.stack).rpartition(" at ")
        held = False if self.state else waits(self.stack)
        return Evidence(self.rank, waits=held, operation=operation, location=location, number=self.number)


def _doing(stack: Stack) -> str:
    """Describe a stack. A rank in a library's function most likely waits; a rank in the user's code may not."""
    in_library = not is_users(stack[0].file)
    return f"{'waiting ' if in_library else ''}in {standing(stack)}"


@dataclass(frozen=True)
class AskedProcess:
    """A process that is asked for its stacks, and the file to which it writes them."""

    pid: int | None
    stacks: IO[bytes]


def call(seats: dict[int, Seat], native_within: float = 0.0) -> list[Stance]:
    """Ask these ranks for their stacks; with ``native_within``, also read C frames, for at most that many seconds."""
    return ask({rank: AskedProcess(seat.pid, seat.output.stacks) for rank, seat in seats.items()}, native_within)


def ask(seats: dict[int, AskedProcess], native_within: float = 0.0, stop: bool = True) -> list[Stance]:
    """Ask these processes for their stacks. Without ``stop`` no process is stopped, so that its world can go on."""
    states = {rank: _state(seat.pid) for rank, seat in seats.items()}
    # The signal interrupts a sleep in C, and a rank that continues may let others continue: stop all, then ask all.
    if stop:
        _signal(seats, signal.SIGSTOP)
    natives: dict[int, tuple[str, ...]] = {}
    if native_within and len(seats) <= _NATIVE_READERS:
        natives = read_natives({rank: seat.pid for rank, seat in seats.items()}, native_within)
    before = {rank: _size(seat) for rank, seat in seats.items()}
    _signal(seats, STACKS_SIGNAL)  # each rank answers before it does anything else
    if stop:
        _signal(seats, signal.SIGCONT)
    _await_answers(seats, before)
    stances = [
        Stance(rank, *parse(read_all(seat.stacks)), state=states[rank]) for rank, seat in sorted(seats.items())
    ]
    if native_within and len(seats) > _NATIVE_READERS:
        # Reading takes 0.3 s or more of a core, but a world must end in time: read one rank of each group.
        blamed = blame([stance.evidence for stance in stances])
        asked = [group[0].rank for _, group in groups(stances, blamed)][:_NATIVE_READERS]
        natives = read_natives({rank: seats[rank].pid for rank in asked}, native_within)
    return [replace(stance, native=natives.get(stance.rank, ())) for stance in stances]


def _signal(seats: dict[int, AskedProcess], number: int) -> None:
    for seat in seats.values():
        if seat.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(seat.pid, number)


def _await_answers(seats: dict[int, AskedProcess], before: dict[int, int]) -> None:
    until = time.monotonic() + _ANSWER
    last: dict[int, int] = {}
    while time.monotonic() < until:
        sizes = {rank: _size(seat) for rank, seat in seats.items()}
        if sizes == last and all(sizes[rank] > before[rank] for rank in seats):
            return
        last = sizes
        time.sleep(0.005)


def _size(seat: AskedProcess) -> int:
    return os.fstat(seat.stacks.fileno()).st_size


def parse(text: str) -> tuple[Stack, tuple[Stack, ...]]:
    """Read the last dump of faulthandler: the main thread's stack, and those of threads that run the user's code."""
    stacks: list[tuple[str, list[Frame]]] = []
    for line in text.splitlines():
        if thread := _THREAD.match(line):
            stacks.append((thread["id"], []))
        elif (match := _FRAME.match(line)) and stacks:
            number = int(match["line"]) if match["line"].isdigit() else 0
            stacks[-1][1].append(Frame(match["file"], number, match["function"]))
    if not stacks:
        return (), ()
    # The main thread is the last of each dump.
    main, stack = stacks.pop()
    ends = [number for number, (thread, _) in enumerate(stacks) if thread == main]
    others = [tuple(frames) for _, frames in stacks[ends[-1] + 1 if ends else 0 :]]
    return tuple(stack), tuple(other for other in others if any(is_users(frame.file) for frame in other))


def _state(pid: int | None) -> str:
    """Return "stopped" for a process that a signal or a tracer has stopped."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as file:
        return "stopped" if file.read().rpartition(")")[2].split()[0] in "Tt" else ""
    return ""


def native_reader() -> str:
    """Return the path of the program that reads C frames, or ""."""
    beside = os.path.join(os.path.dirname(sys.executable), "pystack")
    return beside if os.access(beside, os.X_OK) else shutil.which("pystack") or ""


def read_natives(pids: dict[int, int | None], within: float) -> dict[int, tuple[str, ...]]:
    """Return the C frames of these ranks, or why they cannot be read."""
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
    """Group the ranks that do the same: blamed ranks first, then by rank."""
    together: dict[str, list[Stance]] = {}
    for stance in stances:
        together.setdefault(stance.doing, []).append(stance)
    return sorted(together.items(), key=lambda group: (group[1][0].rank not in blamed.ranks, group[1][0].rank))


def folded(stances: Iterable[Stance], blamed: Blame) -> list[str]:
    """Return one line for each group: ``ranks 0,2,3 are waiting in all_reduce at test_x.py:12``."""
    lines = []
    for doing, group in groups(stances, blamed):
        verb = "is" if len(group) == 1 else "are"
        lines.append(f"{ranks_text([stance.rank for stance in group])} {verb} {doing}")
    return lines


def cause(stances: list[Stance], blamed: Blame) -> str:
    """Describe in one line why a world did not finish: what each group does, blamed ranks first."""
    clauses = [group[0].sentence([stance.rank for stance in group]) for _, group in groups(stances, blamed)]
    if blamed.rule == ENDED:
        ranks = list(blamed.ranks)
        clauses.insert(0, f"{few_ranks_text(ranks)} ended {'its' if len(ranks) == 1 else 'their'} test")
    more = len(clauses) - _GROUPS_IN_HEADLINE
    if more > 0:
        clauses[_GROUPS_IN_HEADLINE:] = [f"and {more} more group{'s' if more > 1 else ''}"]
    return "; ".join(clauses)


def render(stances: list[Stance], blamed: Blame, cause_is_known: bool = False) -> str:
    """Render the whole roll call: a line for each group, then its stack.

    If the cause is known, native frames would add nothing, so their installation is not suggested.
    """
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
    """Describe the other threads of these ranks that run the user's code: one line for each location."""
    locations: dict[str, list[int]] = {}
    for stance in group:
        for stack in stance.beside:
            locations.setdefault(_doing(stack), []).append(stance.rank)
    lines = []
    for doing, ranks in locations.items():
        subject = "another thread" if len(ranks) == 1 else f"{len(ranks)} other threads"
        verb = "is" if len(ranks) == 1 else "are"
        lines.append(f"  {subject} of {ranks_text(sorted(set(ranks)))} {verb} {doing}")
    return lines


def until_pytest(stack: Stack) -> list[Frame]:
    """Return the stack down to the frame in which pytest called the user's code."""
    users = [number for number, frame in enumerate(stack) if is_users(frame.file)]
    ours = [number for number, frame in enumerate(stack) if is_ours(frame.file)]
    return list(stack[: users[-1] + 1] if users else stack[: ours[0] + 1] if ours else stack[:20])


def native_frames(text: str, pid: int | None, most: int = 24) -> tuple[str, ...]:
    """Return the main thread's C frames in pystack's output, innermost first."""
    frames: list[str] = []
    in_main_thread = False
    for line in text.splitlines():
        if line.startswith("Traceback for thread"):
            in_main_thread = line.split()[3] == str(pid)
        elif in_main_thread and (match := _NATIVE_FRAME.match(line)):
            source = f"at {os.path.basename(match['file'])}:{match['line']}" if match["line"] != "0" else ""
            location = source or f"in {os.path.basename(match['library'])}"
            frames.append(f"{one_line(match['function'], 100)} {location}")
    if "Traceback for thread" not in text:
        return (f"(not known: {one_line(text.strip().rsplit(chr(10), 1)[-1] or 'pystack printed nothing')})",)
    return tuple(frames[::-1][:most])


def fatal(text: str) -> str:
    """Return what faulthandler wrote at a fatal signal, without the frames of pytest and of this harness."""
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
