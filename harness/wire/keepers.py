"""The messages between the controller and the keeper of ranks, which starts and ends them."""

from __future__ import annotations

from everyrank.wire.messages import Message


class StartRank(Message, frozen=True):
    """Start one rank; its file descriptors travel with this message."""

    number: int


class Preload(Message, frozen=True):
    """Import these modules before further ranks are forked, if that is safe."""

    names: list[str]
    within: float  # seconds


class Kill(Message, frozen=True):
    """Kill these ranks and every process that they started."""

    numbers: list[int]


class Close(Message, frozen=True):
    """Kill the ranks that are left, remove the run's folder and end."""


class Started(Message, frozen=True):
    """Report that a rank has a process."""

    number: int
    pid: int


class Exited(Message, frozen=True):
    """Report that a rank's process ended, with its wait status."""

    number: int
    status: int


class NotStarted(Message, frozen=True):
    """Report that a rank could not be started."""

    number: int
    reason: str


class Unsafe(Message, frozen=True):
    """Report why forking ranks is unsafe, as the zygote found at its start (empty: forking is safe)."""

    reason: str


class Importing(Message, frozen=True):
    """Report the module that a zygote's successor imports next."""

    name: str


class Preloaded(Message, frozen=True):
    """Report that the modules are imported, except those that are left to the ranks."""


FromKeeper = Started | Exited | NotStarted | Unsafe | Importing | Preloaded
ToKeeper = StartRank | Preload | Kill | Close
