"""The roll call: what each rank was doing when its world did not finish."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from everyrank.launch.native import reader_path
from everyrank.launch.protocol import NATIVE_READERS, AskedStacks, Launcher, NativeFrames, Seat
from everyrank.model.counts import count
from everyrank.model.ranks import few_ranks_text, ranks_text
from everyrank.rollcall import nccl
from everyrank.rollcall.blame import ENDED, Blame, Evidence, blame
from everyrank.stack.frames import (
    Frame,
    imports,
    is_ours,
    is_users,
    next_batch,
    only_sees,
    standing,
    waits,
    waits_for_threads,
)
from everyrank.wire.messages import Handled, OnNccl, WitnessStatement

_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)$')
#: What faulthandler writes for a letter outside ASCII.
_ESCAPED = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))")
_THREAD = re.compile(r"^(?:Current thread|Thread) (?P<id>0x[0-9a-f]+)")

#: The functions in which a worker of a loader begins, and any process of multiprocessing.
_BEGINS = re.compile(r"torch/utils/data/_utils/worker\.py$|multiprocessing/process\.py$")
_BEGIN = ("_worker_loop", "_bootstrap")
_QUEUES = re.compile(r"multiprocessing/queues\.py$")

#: A headline describes this many groups of ranks, and counts the rest.
_GROUPS_IN_HEADLINE = 3

_NO_ANSWER = "not answering (no stack available)"

#: The end of the file that makes a call of everyrank.run on a rank.
_CALLS = os.path.join("everyrank", "call", "on_ranks.py")

Stack = tuple[Frame, ...]  # innermost first


@dataclass(frozen=True)
class Child:
    """A process that a rank has started, in a roll call."""

    pid: int
    title: str
    stack: Stack  # of its main thread, down to where it began; empty if it is not known

    @property
    def doing(self) -> str:
        """Describe what it does; an empty text if it waits to be asked for a batch, or if that is not known."""
        idle = not self.stack or (self.stack[-1].function == "get" and bool(_QUEUES.search(self.stack[-1].file)))
        return "" if idle else _doing(self.stack)


@dataclass(frozen=True)
class Stance:
    """One rank in a roll call."""

    rank: int
    stack: Stack  # the main thread's
    beside: tuple[Stack, ...] = ()  # the stacks of other threads that run the user's code, such as RPC calls
    state: str = ""  # "stopped" if a signal holds the process
    number: int | None = None  # the number of the collective of the default group that it waits in, if known
    misled: bool = False  # it waits for a root that takes another rank for it
    native: tuple[str, ...] = ()  # its C frames, innermost first, or why they are unknown
    nccl: OnNccl | None = None  # what its GPU was asked to do, if it has one
    children: tuple[Child, ...] = ()
    handles: Handled | None = None  # the exception that its main thread is handling, if that is known
    awaits: str = ""  # the call that its main thread is in, with what it waits for, if the stack does not show that
    threads: tuple[str, ...] = ()  # what its other threads do, if its main thread may wait for one of them

    def stated(self, statement: WitnessStatement | None) -> Stance:
        """Return this stance with what the rank's witness states, if it has answered just now."""
        if statement is None:
            return self
        held = bool(statement.awaits) and statement.kind != "message"
        threads = statement.threads if held or waits_for_threads(self.stack) else []
        return replace(self, handles=statement.handles, awaits=statement.awaits, threads=tuple(threads))

    def on_gpu(self, seen: OnNccl | None) -> Stance:
        """Return this stance with what NCCL's flight recorder shows."""
        waits_in = seen.first if seen is not None else None
        number = waits_in.number if waits_in is not None and not waits_in.group else None
        return replace(self, nccl=seen, number=number)

    @property
    def doing(self) -> str:
        doing = _doing(self.stack) if self.stack else _NO_ANSWER
        location = standing(self.stack).rpartition(" at ")[2]
        if self.awaits:
            doing = f"waiting in {self.awaits} at {location}"
        threads = f"with {'a thread' if len(self.threads) == 1 else 'threads'} {' and '.join(self.threads)}"
        misled = "for another root" if self.misled else ""
        beside = [self._workers, threads if self.threads else "", self.state, misled, nccl.doing(self.nccl)]
        if self.handles is not None:
            beside.append(f"while handling {self.handles.beside(location)}")
        return ", ".join([doing, *filter(None, beside)])

    @property
    def _workers(self) -> str:
        """Describe what the workers do if a rank waits for their next batch."""
        doings = sorted({child.doing for child in self.children} - {""}) if next_batch(self.stack) else []
        return f"whose worker is {doings[0]}" if doings else ""

    def sentence(self, ranks: list[int]) -> str:
        """Return a clause about ranks that share this stance: ``ranks 0,2,3 wait in all_reduce at test_x.py:25``."""
        single = len(ranks) == 1
        doing = self.doing.removeprefix("waiting ")
        verb = ("is" if single else "are") if doing == self.doing else "waits" if single else "wait"
        return f"{few_ranks_text(ranks)} {verb} {doing}"

    @property
    def _held(self) -> bool | None:
        """Return whether it waits for other ranks, maybe in a thread of its own; None if that is not known."""
        for_others = self.awaits.endswith(" of a store") or (self.threads and any(map(waits, self.beside)))
        return True if for_others else waits(self.stack)

    @property
    def evidence(self) -> Evidence:
        """Return the evidence for blame. A rank that is stopped keeps others waiting, wherever it is."""
        operation, _, location = standing(self.stack).rpartition(" at ")
        held = False if self.state else self._held
        if self.nccl is not None and self.nccl.first is not None and not self.state:
            # Its GPU waits for other ranks, and its main thread for the GPU, maybe in a call that has no frame.
            held, operation = True, self.nccl.first.name
        if self.nccl is not None and self.nccl.problem and not self.state:
            held = held or None
        handles = self.handles is not None
        return Evidence(self.rank, None, False, held, operation, location, self.number, handles, self.misled)


def _doing(stack: Stack) -> str:
    """Describe a stack. A rank in a library's function most likely waits; a rank in the user's code may not."""
    if (module := imports(stack)) and not waits(stack):
        return f"importing {module} at {standing(stack).rpartition(' at ')[2]}"
    in_library = not is_users(stack[0].file)
    return f"{'waiting ' if in_library else ''}{'for' if next_batch(stack) else 'in'} {standing(stack)}"


def call(launcher: Launcher, seats: Mapping[int, Seat], native_within: float = 0.0) -> list[Stance]:
    """Ask these ranks for their stacks; with ``native_within``, also read C frames, for at most that many seconds."""
    stances = read(launcher.stacks(seats, native_within))
    if not native_within:
        return stances
    return with_native(
        stances, lambda ranks: launcher.native_frames({rank: seats[rank] for rank in ranks}, native_within)
    )


def with_native(stances: list[Stance], read_frames: Callable[[list[int]], NativeFrames]) -> list[Stance]:
    """Add C frames of one rank of each group, if no rank's were read while it was stopped.

    Reading takes 0.3 s or more of a core, but a world must end in time.
    """
    if any(stance.native for stance in stances):
        return stances
    together = groups(stances, blame([stance.evidence for stance in stances]))
    natives = read_frames([group[0].rank for _, group in together][:NATIVE_READERS])
    return [replace(stance, native=natives.get(stance.rank, ())) for stance in stances]


def read(answers: Mapping[int, AskedStacks]) -> list[Stance]:
    """Return the stances of ranks that were asked for their stacks."""
    return [
        Stance(
            rank,
            *parse(answer.text),
            state=answer.state,
            native=answer.native,
            children=tuple(Child(child.pid, child.title, _own(parse(child.text)[0])) for child in answer.children),
        )
        for rank, answer in sorted(answers.items())
    ]


def _own(stack: Stack) -> Stack:
    """Return the stack of a process down to where it began: below it are the frames of the rank that forked it."""
    began = (number for number, frame in enumerate(stack) if _BEGINS.search(frame.file) and frame.function in _BEGIN)
    return stack[: next(began, len(stack))]


def parse(text: str) -> tuple[Stack, tuple[Stack, ...]]:
    """Read the last dump of faulthandler: the main thread's stack, and those of threads that run the user's code."""
    stacks: list[tuple[str, list[Frame]]] = []
    for line in text.splitlines():
        if thread := _THREAD.match(line):
            stacks.append((thread["id"], []))
        elif (match := _FRAME.match(line)) and stacks:
            file, number = _unescaped(match["file"]), int(match["line"]) if match["line"].isdigit() else 0
            if not only_sees(file):
                stacks[-1][1].append(Frame(file, number, _unescaped(match["function"])))
    if not stacks:
        return (), ()
    # The main thread is the last of each dump.
    main, stack = stacks.pop()
    ends = [number for number, (thread, _) in enumerate(stacks) if thread == main]
    others = [tuple(frames) for _, frames in stacks[ends[-1] + 1 if ends else 0 :]]
    return tuple(stack), tuple(other for other in others if waits(other) or any(is_users(f.file) for f in other))


def _unescaped(name: str) -> str:
    return _ESCAPED.sub(lambda code: chr(int(code[1] or code[2] or code[3], 16)), name)


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
        clauses[_GROUPS_IN_HEADLINE:] = [f"and {count(more, 'more group')}"]
    return "; ".join(clauses)


def render(stances: list[Stance], blamed: Blame, cause_is_known: bool = False) -> str:
    """Render the whole roll call: a line for each group, then its stack.

    If the cause is known, native frames would add nothing, so their installation is not suggested.
    """
    if not stances:
        return "no rank is left to ask"
    lines = folded(stances, blamed)
    if on_nccl := _on_nccl(stances):
        lines += ["", "NCCL's flight recorder, in this test:", *on_nccl]
    for _, group in groups(stances, blamed):
        lines += ["", f"{ranks_text([stance.rank for stance in group])}, innermost frame first:"]
        lines += [f"  {frame.function} at {frame}" for frame in until_pytest(group[0].stack)]
        lines += _beside(group)
        lines += _children(group)
        native = next((stance for stance in group if stance.native), None)
        if native is not None:
            lines += [f"  native frames of rank {native.rank}:", *(f"    {frame}" for frame in native.native)]
    hint = not cause_is_known and not reader_path()
    if hint and any(stance.doing.startswith("waiting") for stance in stances):
        lines += ["", "(native frames: pip install pystack)"]
    return "\n".join(lines)


def _on_nccl(stances: Iterable[Stance]) -> list[str]:
    """Describe what NCCL's flight recorders show: one line for all ranks with the same."""
    shown: dict[str, list[int]] = {}
    for stance in stances:
        if stance.nccl is not None:
            shown.setdefault(nccl.text(stance.nccl), []).append(stance.rank)
    return [f"{ranks_text(ranks)}: {text}" for text, ranks in shown.items()]


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


def _children(group: list[Stance]) -> list[str]:
    """Describe the processes that these ranks have started, with one stack for all that do the same."""
    together: dict[tuple[int, str, str], list[Child]] = {}
    for stance in group:
        for child in stance.children:
            doing = child.doing or ("idle" if child.stack else "not asked (no stack available)")
            together.setdefault((stance.rank, child.title, doing), []).append(child)
    lines = []
    for (rank, title, doing), children in together.items():
        pids = ",".join(str(child.pid) for child in children)
        verb = "is" if len(children) == 1 else "are"
        lines.append(f"  {title}{'' if len(children) == 1 else 's'} {pids} of rank {rank} {verb} {doing}")
        if children[0].doing:
            lines += [f"    {frame.function} at {frame}" for frame in children[0].stack]
    return lines


def until_pytest(stack: Stack) -> list[Frame]:
    """Return the stack down to the frame in which pytest called the user's code, or ``everyrank.run`` did."""
    # A rank of a call is a fork of its caller, whose frames come after those of the call.
    called = next((number for number, frame in enumerate(stack) if frame.file.endswith(_CALLS)), len(stack))
    stack = stack[:called]
    users = [number for number, frame in enumerate(stack) if is_users(frame.file)]
    of_harness = [number for number, frame in enumerate(stack) if is_ours(frame.file)]
    return list(stack[: users[-1] + 1] if users else stack[: of_harness[0] + 1] if of_harness else stack[:20])


def fatal(text: str) -> str:
    """Return what faulthandler wrote at a fatal signal, without the frames of pytest and of this harness."""
    kept: list[str] = []
    stack: list[tuple[str, str]] = []  # lines and files
    for line in [*text.splitlines(), ""]:
        if match := _FRAME.match(line):
            file = _unescaped(match["file"])
            stack += [] if only_sees(file) else [(line, file)]
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
