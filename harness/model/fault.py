"""A fault on purpose as plain data: what one rank does at one of its collectives."""

from __future__ import annotations

import msgspec
from everyrank.model.ranks import ordinal

#: What a rank does: its process ends, an exception is raised in it, it comes late, or it gets another result.
DIES = "dies"
EXITS = "exits"
RAISES = "raises"
WAITS = "waits"
FLIPS = "flips"

#: The number of a fault that is tried at each collective of its rank, one run of the test for each.
EACH = 0


class Fault(msgspec.Struct, frozen=True):
    """What one rank does at one of its collectives."""

    rank: int
    act: str
    number: int  # of the collective, among those of this rank in this test, from 1; or EACH
    value: str = ""  # the signal, the exit code, the name of the exception, or the seconds
    after: bool = False  # once the collective is over on this rank, instead of before it

    @property
    def ends_the_rank(self) -> bool:
        """Whether the rank is not to come to the end of its test."""
        return self.act in (DIES, EXITS, RAISES)

    @property
    def text(self) -> str:
        """Return the fault in the words in which a mark states it."""
        which = f"its {ordinal(self.number)} collective" if self.number != EACH else "each collective"
        time = "after" if self.after else "at"
        match self.act:
            case "waits":
                return f"rank {self.rank} waits {self.value} s before {which}"
            case "flips":
                return f"rank {self.rank} gets a flipped bit from {which}"
            case "dies":
                by = "" if self.value == "SIGKILL" else f" by {self.value}"
                return f"rank {self.rank} dies{by} {time} {which}"
            case "exits":
                return f"rank {self.rank} exits with {self.value} {time} {which}"
        return f"rank {self.rank} raises {self.value} {time} {which}"


class Plan(msgspec.Struct, frozen=True):
    """The faults of one run of a test; none if its collectives are only counted."""

    faults: list[Fault] = []

    @property
    def ends_a_rank(self) -> bool:
        return any(fault.ends_the_rank for fault in self.faults)


class Made(msgspec.Struct, frozen=True, array_like=True):
    """A collective that a rank made."""

    name: str  # as the user knows it: all_reduce
    location: str  # the user's line

    def __str__(self) -> str:
        return f"{self.name} at {self.location}" if self.location else self.name


class Counted(msgspec.Struct, frozen=True):
    """The collectives that a rank made in a test with a plan."""

    number: int
    calls: list[Made] = []  # the first of them
    trouble: str = ""  # why a fault could not act at its collective
