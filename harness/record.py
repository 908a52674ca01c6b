"""What travels between the controller and the ranks: typed messages, never pickles.

A record is what one rank files about one test. Reports inside it are pytest's own serialised form.
"""

from __future__ import annotations

from typing import Any

import msgspec


class Message(msgspec.Struct, tag=True, frozen=True):
    """The base of everything that travels."""


# --- from the controller to a rank -----------------------------------------------------------------


class Collect(Message, frozen=True):
    """To a rank in a clean interpreter: be this pytest run, narrowed to one file."""

    args: list[str]
    options: dict[str, Any]
    invocation_dir: str
    file: str
    sys_path: list[str]
    environment: dict[str, str]  # what must be there before the file is imported
    coverage: dict[str, Any]  # how it is to be measured, if it is


class Order(Message, frozen=True):
    """Run this item as this rank."""

    number: int  # of this attempt, among all of the run
    nodeid: str
    occurrence: int  # which of the items of that name, since pytest allows several
    index: int  # its place among the collected items, which a forked rank shares
    next_nodeid: str | None  # what this world runs next: fixtures that it shares stay up
    next_index: int
    rank: int
    size: int
    backend: str
    device: str
    visible: str | None  # the GPUs that this rank may see, as the variable has them; None: what it sees anyway
    seed: int
    folder: str
    port: int  # free for the rendezvous of code that opens its group itself
    keep: bool  # whether the world may serve another test
    group: bool  # whether the world keeps its default group from test to test
    leaks: str
    debug_rank: int | None
    launcher: str


class CloseUp(Message, frozen=True):
    """All ranks passed and came back clean: pass a closing barrier, then wait for an order."""


class Leave(Message, frozen=True):
    """No more orders: tear down what is left and go."""


class Granted(Message, frozen=True):
    """The answer to a rank that asked for the debugger."""

    yes: bool


class Met(Message, frozen=True):
    """All ranks came to a meeting point; what each of them brought, by rank."""

    points: list[str]
    digests: list[str]
    texts: list[str]
    missing: list[int]


# --- from a rank to the controller -----------------------------------------------------------------


class PhaseEnded(Message, frozen=True):
    """A phase ended other than well; sent at once, since the teardown may never come to its end."""

    phase: Phase


class Deadline(Message, frozen=True):
    """From pytest-timeout with ``func_only``: the call has this long from now on."""

    seconds: float


class WantsDebugger(Message, frozen=True):
    """A rank reached a breakpoint or failed under ``--pdb``."""

    reason: str


class DebuggerLeft(Message, frozen=True):
    """The person at the debugger let the rank go on."""


class Meet(Message, frozen=True):
    """A rank came to ``world.barrier()`` or ``world.all_agree()``."""

    point: str
    digest: str
    text: str


class Leak(msgspec.Struct, frozen=True):
    """Something that a test left behind on a rank."""

    kind: str
    description: str


class Warned(msgspec.Struct, frozen=True):
    """A warning raised on a rank."""

    category: str
    module: str
    text: str
    filename: str
    lineno: int
    when: str


class Phase(msgspec.Struct, frozen=True):
    """One phase of one rank."""

    when: str
    outcome: str  # passed, failed, skipped, xfailed, xpassed
    report: dict[str, Any]
    ended_at: float = 0.0  # when it ended, on the machine's monotonic clock
    brief: str = ""  # the failure in one line
    location: str = ""  # the frame of the user's code that it came from
    signature: str = ""  # equal for equal failures
    strict_xpass: bool = False


class Record(Message, frozen=True):
    """All that one rank files about one test."""

    fingerprint: str
    phases: list[Phase]
    leaks: list[Leak]
    warnings: list[Warned]
    unclean: list[str]  # why this rank's process cannot serve another test
    collectives: int | None  # the default group's count, when a group is kept
    trouble: str = ""  # the item could not be run at all: why
    exit_request: str | None = None  # pytest.exit() was called: its text
    stop_request: str = ""  # session.shouldstop was set: its text
    notes: dict[str, Any] = {}  # what the test noted about itself, for reports: plain data
    imports: list[str] = []  # modules of installed packages that are new to this process, the outermost first

    @property
    def ended_badly(self) -> bool:
        """Whether the other ranks may wait for this one in vain."""
        failed = any(phase.outcome == "failed" and phase.when != "teardown" for phase in self.phases)
        return failed or bool(self.trouble) or self.exit_request is not None


class Collective(msgspec.Struct, frozen=True):
    """One collective of a rank, as torch has recorded it."""

    group: str
    number: int  # among those of its group
    name: str
    tensors: str  # shapes and dtypes


class WitnessStatement(Message, frozen=True):
    """What a rank's witness says, when its whole world stands still."""

    test: int  # the number of the order
    thread: int  # the witness's own
    may_act: str = ""  # why this rank may do something by itself
    operation: str = ""  # what the main thread waits in; empty where that is not certain
    location: str = ""  # the user's line
    group: str = ""
    members: list[int] = []  # the ranks of the group
    number: int | None = None  # which of the group's collectives; None for a send or a receive
    peer: int | None = None  # of a send or a receive; None for any
    patience: float = 0.0  # after so many seconds the call gives up
    collectives: list[Collective] = []  # the last ones of this test
    before: dict[str, int] = {}  # by group: how many there were before this test, where that is known


class ClosedUp(Message, frozen=True):
    """The closing barrier was passed, or why not."""

    problem: str


class LeftWorld(Message, frozen=True):
    """The rank has torn everything down and leaves; how that failed, or nothing."""

    problem: str


FromRank = (
    PhaseEnded | Deadline | WantsDebugger | DebuggerLeft | Meet | WitnessStatement | Record | ClosedUp | LeftWorld
)
ToRank = Collect | Order | CloseUp | Leave | Granted | Met


# --- between the controller and a keeper -----------------------------------------------------------


class StartRank(Message, frozen=True):
    """Start one rank; its file descriptors travel with this message."""

    number: int


class Preload(Message, frozen=True):
    """Import these, if it is safe to, before further ranks are forked."""

    names: list[str]
    within: float  # seconds


class Kill(Message, frozen=True):
    """Kill these ranks and all that they started."""

    numbers: list[int]


class Close(Message, frozen=True):
    """Kill what is left, tidy up and go."""


class Started(Message, frozen=True):
    """A rank is a process now."""

    number: int
    pid: int


class Exited(Message, frozen=True):
    """A rank's process ended, with its wait status."""

    number: int
    status: int


class Unsafe(Message, frozen=True):
    """The zygote found, at its start, why forking ranks would be unsafe (empty: it is safe)."""

    reason: str


class Importing(Message, frozen=True):
    """A zygote's successor is about to import this."""

    name: str


class Preloaded(Message, frozen=True):
    """What was to be imported is there, but for what is left to the ranks."""


FromKeeper = Started | Exited | Unsafe | Importing | Preloaded
ToKeeper = StartRank | Preload | Kill | Close
