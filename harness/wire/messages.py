"""The messages between the controller and the ranks: typed structs, never pickles.

A rank files one record about each test. Reports inside a record have pytest's own serialised form.
"""

from __future__ import annotations

from typing import Any

import msgspec
from everyrank.model.fault import Counted, Fault, Made, Plan
from everyrank.model.mutation import Observe, Seen


class Message(msgspec.Struct, tag=True, frozen=True):
    """The base of all messages."""


# --- from the controller to a rank -----------------------------------------------------------------


class Collect(Message, frozen=True):
    """Ask a rank in a clean interpreter to repeat the collection of this pytest run, for one file."""

    args: list[str]
    options: dict[str, Any]
    invocation_dir: str
    file: str
    sys_path: list[str]
    environment: dict[str, str]  # variables to set before the file is imported
    coverage: dict[str, Any]  # how to measure coverage; empty if it is not measured
    working_dir: str  # the folder whose copy the rank starts in; empty if this host's files have the same paths


class Order(Message, frozen=True):
    """Run this item as this rank."""

    number: int  # of this attempt, counted over the whole run
    nodeid: str
    occurrence: int  # which of the items with this node id, since pytest allows several
    index: int  # among the collected items, which are the same in a forked rank
    next_nodeid: str | None  # the next test of this world: shared fixtures stay up
    next_index: int
    rank: int
    size: int
    backend: str
    device: str
    visible: dict[str, str]  # the GPUs that this rank may see, as their type's variable lists them; others: no change
    seed: int
    folder: str  # the test's, on this rank's host
    shared: bool  # whether that folder is the same for all ranks
    address: str  # where rank 0 can be found
    port: int  # free for the rendezvous of code that opens its group itself
    keep: bool  # whether the world may serve another test
    group: bool  # whether the world keeps its default group from test to test
    leaks: str
    debug_rank: int | None
    local_rank: int  # among the ranks of this world on the same host
    local_size: int
    host: int  # among the hosts of this world
    hosts: int
    watch: Observe | None = None  # with --mutate: note the collectives, or change one
    plan: Plan | None = None  # with faults on purpose: count the collectives, and let a fault happen at one


class CloseUp(Message, frozen=True):
    """Ask a rank to pass a closing barrier and to wait for an order: all ranks passed and left nothing behind."""


class Leave(Message, frozen=True):
    """Ask a rank to tear down its fixtures and to end: there are no more orders."""


class Granted(Message, frozen=True):
    """Answer a rank that asked for the debugger."""

    yes: bool


class Met(Message, frozen=True):
    """Report what each rank brought to a meeting point, by rank: all ranks have reached it or ended."""

    points: list[str]
    digests: list[str]
    texts: list[str]
    missing: list[int]


# --- from a rank to the controller -----------------------------------------------------------------


class PhaseEnded(Message, frozen=True):
    """Report at once that a phase failed or was skipped: the teardown may never end."""

    phase: Phase


class Deadline(Message, frozen=True):
    """Report the time limit that starts now, with the call (pytest-timeout with ``func_only``)."""

    seconds: float


class FaultActs(Message, frozen=True):
    """Report a fault on purpose just before it happens: the rank may not live on."""

    fault: Fault
    call: Made


class DestroysGroup(Message, frozen=True):
    """Report that this rank destroys its group after a test's method: it sleeps for most of that time."""


class WantsDebugger(Message, frozen=True):
    """Ask for the debugger: this rank reached a breakpoint or failed under ``--pdb``."""

    reason: str


class DebuggerLeft(Message, frozen=True):
    """Report that the user at the debugger let the rank continue."""


class Meet(Message, frozen=True):
    """Report that a rank reached a meeting point, such as ``world.barrier()`` or ``world.all_agree()``."""

    point: str
    digest: str
    text: str
    looks: bool = False
    """Whether this rank only looks where the others are: those that wait elsewhere go on waiting."""


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


class Collective(msgspec.Struct, frozen=True):
    """One collective of a rank, as torch recorded it."""

    group: str
    number: int  # among those of its group
    name: str
    tensors: str  # shapes and dtypes


class Phase(msgspec.Struct, frozen=True):
    """One phase of one rank."""

    when: str
    outcome: str  # passed, failed, skipped, xfailed, xpassed
    report: dict[str, Any]
    ended_at: float = 0.0  # on the host's monotonic clock
    brief: str = ""  # the failure in one line
    location: str = ""  # the frame of the user's code that raised it
    signature: str = ""  # equal for equal failures
    strict_xpass: bool = False
    collective: Collective | None = None  # the rank's last one with a tensor, if it lost a peer
    planned: bool = False  # a fault on purpose has raised the exception


class Sizes(msgspec.Struct, frozen=True, array_like=True):
    """How much one rank gave and took in a collective of gloo that accepts unequal sizes, in bytes."""

    group: str
    rank: int  # in the group
    size: int  # the number of the group's ranks
    number: int  # among the group's collectives
    name: str
    takes: list[int]  # from each rank of the group; or a single number, which all ranks must have in common
    gives: list[int]  # to each rank of the group, or nothing
    row: int = 0  # what a row has, if ``takes`` and ``gives`` are counted in rows
    location: str = ""  # the user's line; empty if an earlier call had the same sizes
    tensor: str = ""  # shape and dtype


class Record(Message, frozen=True):
    """All that one rank files about one test."""

    fingerprint: str
    phases: list[Phase]
    leaks: list[Leak]
    warnings: list[Warned]
    unclean: list[str]  # why this rank's process cannot serve another test
    collectives: int | None  # the default group's count, when a group is kept
    quiet: bool = False  # whether it surely exchanged nothing in a process group
    sent: dict[str, int] = {}  # in that group, by "peer/tag": how many messages this rank sent to single ranks
    asked: dict[str, int] = {}  # and how many it asked of them; the peer is "any" if it took one from anyone
    trouble: str = ""  # why the item could not be run at all
    exit_request: str | None = None  # the text given to pytest.exit(), if it was called
    exit_code: int | None = None  # and the exit code
    stop_request: str = ""  # the text of session.shouldstop, if it was set
    fail_request: str = ""  # and that of session.shouldfail
    notes: dict[str, Any] = {}  # plain data that the test noted about itself, for reports
    imports: list[str] = []  # modules of installed packages that are new to this process, the outermost first
    sizes: list[Sizes] = []  # of the first collectives that accept unequal sizes
    keep_if_xfailed: bool = False  # whether the test states that its xfail is no reason to end the world
    seen: Seen | None = None  # what it has seen of its collectives, if it was asked to watch them
    counted: dict[str, Counted] | None = None  # its points of each kind, if a fault was planned

    @property
    def ended_badly(self) -> bool:
        """Return whether the other ranks may wait for this one in vain."""
        bad = [phase for phase in self.phases if phase.outcome == "failed" and not phase.planned]
        failed = any(phase.when != "teardown" for phase in bad)
        return failed or bool(self.trouble) or self.exit_request is not None


class Begun(msgspec.Struct, frozen=True):
    """A collective that a rank has begun and that is not over."""

    group: str
    number: int
    members: list[int]


class PlacedCall(msgspec.Struct, frozen=True):
    """A collective as the user's code called it."""

    name: str
    location: str  # the user's line; empty if it is unknown


class Handled(msgspec.Struct, frozen=True):
    """An exception that a main thread is handling while it waits."""

    brief: str  # the exception in one line
    location: str  # the user's line that raised it

    def beside(self, location: str) -> str:
        """Return the exception with its line; only the line's number if it is in the file of this location."""
        file = location.rpartition(":")[0]
        return f"{self.brief} ({self.location.removeprefix(file) if file else self.location})"


class WitnessStatement(Message, frozen=True):
    """Report what a rank's main thread waits for: the witness's answer when no thread of the world runs."""

    test: int  # the number of the order
    thread: int  # the witness's native thread id
    stack: list[tuple[str, int, str]] = []  # the main thread's, innermost first: file, line and function
    may_act: str = ""  # why this rank may still act without its main thread
    operation: str = ""  # the call that the main thread waits in; empty if that is not certain
    location: str = ""  # the user's line
    kind: str = "collective"  # what it waits for; else "message", "group" (to be made) or "future"
    sleep: str = ""  # how the kernel must show the main thread to sleep: "ever", "timed", "polls", or in any manner
    group: str = ""
    made_at: str = ""  # the user's line that made the group; empty for the default group, or if it is unknown
    members: list[int] = []  # the ranks of the group
    number: int | None = None  # the collective's number in its group
    root: int | None = None  # the rank that a broadcast comes from or a reduction goes to, if known
    peer: int | None = None  # the other rank of a send or a receive; None for any rank
    tag: int = 0  # of a send or a receive
    awaits: str = ""  # the call with what it waits for: ``recv from rank 1 with the tag 7``; empty if unknown
    threads: list[str] = []  # what the rank's other threads do that run the user's code
    others: list[Begun] = []  # it may wait for one of these instead
    patience: float = 0.0  # the time limit of the call, in seconds
    collectives: list[Collective] = []  # the last ones of this test
    handles: Handled | None = None  # the exception that the main thread is handling
    calls: dict[str, list[PlacedCall]] = {}  # by group: all collectives of this test, if torch has kept them all
    idle_children: list[int] = []  # the processes that this one has started, and that do nothing unless it asks them
    reached: dict[str, int] = {}  # by group: the number of the test's last collective
    before: dict[str, int] = {}  # by group: the number of collectives before this test, if known
    position: tuple[int, int] = (0, 0)  # this rank in its default group, and how many that has


class NcclCall(msgspec.Struct, frozen=True):
    """One collective, or one message to or from a rank, on NCCL, as torch recorded it."""

    name: str
    number: int | None  # of a collective, among those of its group
    group: str  # its title, or its name; empty for the default group
    tensors: str  # shapes and dtypes
    started: bool  # whether the GPU is known to have begun it


class OnNccl(Message, frozen=True):
    """Report what NCCL's flight recorder shows of a test: the witness's answer at a deadline."""

    test: int  # the number of the order
    first: NcclCall | None = None  # the oldest call that is not over: the GPU waits in it
    last: NcclCall | None = None  # the youngest call
    pending: int = 0  # how many are not over
    begun: int = 0  # how many there are
    problem: str = ""  # why the recorder could not be read


class ClosedUp(Message, frozen=True):
    """Report that the closing barrier was passed, or why it was not."""

    problem: str


class LeftWorld(Message, frozen=True):
    """Report that the rank has torn everything down and ends; ``problem`` says what failed, if anything."""

    problem: str


class Progressed(Message, frozen=True):
    """Report the phase that begins: only where the controller cannot share memory with the rank."""

    test: int  # the number of the order
    when: str


FromRank = (
    PhaseEnded
    | Deadline
    | DestroysGroup
    | FaultActs
    | WantsDebugger
    | DebuggerLeft
    | Meet
    | WitnessStatement
    | OnNccl
    | Record
    | ClosedUp
    | LeftWorld
)
ToRank = Collect | Order | CloseUp | Leave | Granted | Met
