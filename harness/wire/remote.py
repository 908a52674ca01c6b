"""The messages between the controller and a remote keeper, which starts ranks where its engine has put it.

A rank's own messages do not come this way: each rank has a connection of its own to the controller.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from everyrank.wire.keepers import Close, Exited, Kill, NotStarted, Preload, Preloaded, Started
from everyrank.wire.messages import Message

#: The name of a folder in the run's folder, and no path to another one.
FolderName = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9._-]*\Z")]

# --- from the controller to a remote keeper ---------------------------------------------------------


class StartSeat(Message, frozen=True):
    """Start one rank. It gets connections of its own, for which the keeper knocks at the controller's door."""

    number: int
    name: str  # of its file of stacks
    live: bool  # whether its output is printed as it comes


class Halt(Message, frozen=True):
    """Stop these ranks, wherever they are, before any of them is asked for its stacks."""

    request: int
    numbers: list[int]


class AskStacks(Message, frozen=True):
    """Ask for the stacks of ranks that were stopped, and let them continue."""

    request: int
    numbers: list[int]
    native_within: float  # seconds; 0: without C frames


class AskState(Message, frozen=True):
    """Ask what the process of a rank does."""

    request: int
    number: int


class AskPrinted(Message, frozen=True):
    """Ask what a rank has printed so far."""

    request: int
    number: int


class AskTests(Message, frozen=True):
    """Ask for the tests that the keeper's process has collected."""

    request: int


class ReservePort(Message, frozen=True):
    """Reserve a port where this keeper runs, until it is freed."""

    request: int


class FreePort(Message, frozen=True):
    """Free a reserved port."""

    port: int


class Interrupt(Message, frozen=True):
    """Interrupt a rank, as Ctrl-C does."""

    number: int


class Forget(Message, frozen=True):
    """Close the files of a rank: nobody will ask about it any more."""

    number: int


class RemoveFolder(Message, frozen=True):
    """Remove a test's folder from the run's folder of this host."""

    name: FolderName


class Goodbye(Message, frozen=True):
    """End, with the exit code of the run."""

    exit_code: int


ToRemoteKeeper = (
    StartSeat
    | Halt
    | AskStacks
    | AskState
    | AskPrinted
    | AskTests
    | ReservePort
    | FreePort
    | Interrupt
    | Forget
    | RemoveFolder
    | Kill
    | Preload
    | Close
    | Goodbye
)


# --- from a remote keeper to the controller ---------------------------------------------------------


class Ready(Message, frozen=True):
    """Introduce a keeper: what must be the same in all processes of a run, and where it is."""

    host: str  # the name of its host
    node: str  # differs between the hosts of a run, as the engine counts them
    boot: str  # where it is equal, clocks are equal and processes see each other
    clock: float  # its monotonic clock
    versions: dict[str, str]
    files: dict[str, str]  # digests of the files of tests that it has collected
    tests: str  # a digest of the tests themselves
    folder: str  # the run's folder on its host
    folder_id: str  # differs between folders; "" if it is the controller's
    pid: int = 0
    problem: str = ""  # why it cannot keep ranks
    gpus: list[OneGpu] = []  # that its ranks may use


class OneGpu(msgspec.Struct, frozen=True):
    """A GPU, as its host lists it."""

    uuid: str
    memory: int
    capability: tuple[int, int]
    handle: str
    type: str


class LostRanks(Message, frozen=True):
    """Report that these ranks died with the process that they were children of."""

    reason: str
    numbers: list[int]


class Answer(Message, frozen=True):
    """Answer a question; the base of all answers."""

    request: int


class Done(Answer, frozen=True):
    """Report that what was asked is done."""


class Stacks(Answer, frozen=True):
    """The stacks of ranks by their numbers: the text, the state before, the C frames, and the children's.

    A child has its pid, its title and its text.
    """

    stacks: dict[int, tuple[str, str, tuple[str, ...], list[tuple[int, str, str]]]]


class State(Answer, frozen=True):
    """What the process of a rank does."""

    seconds: float  # of processor time
    wants: bool  # whether it wants to run now
    ending: bool
    waited: float = 0.0  # seconds for a core, since it was asked first


class Printed(Answer, frozen=True):
    """What a rank has printed, and what it wrote about its stacks."""

    printed: list[str]
    stacks: str


class Tests(Answer, frozen=True):
    """The tests that a keeper's process has collected."""

    nodeids: list[str]


class Port(Answer, frozen=True):
    """A port that is reserved."""

    port: int


FromRemoteKeeper = (
    Ready | Started | Exited | NotStarted | LostRanks | Preloaded | Done | Stacks | State | Printed | Tests | Port
)
