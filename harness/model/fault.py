"""A fault on purpose as plain data: what one rank does at one of its collectives, files or keys."""

from __future__ import annotations

import msgspec
from everyrank.model.ranks import ordinal

#: What a rank does: its process ends, an exception is raised in it, it comes late, or its connections end.
DIES = "dies"
EXITS = "exits"
RAISES = "raises"
WAITS = "waits"
CUTS = "cuts"
#: What happens to one collective alone: its result is another, or comes late; to a file; and to a key.
FLIPS = "flips"
LATE = "late"
FULL = "full"
DROPS = "drops"

#: What is counted on a rank: its collectives, the files that it opens to write, and the keys that it sets in stores.
COLLECTIVE = "collective"
FILE = "file"
KEY = "key"

#: The number of a fault that is tried at each point of its rank, one run of the test for each.
EACH = 0


class Fault(msgspec.Struct, frozen=True):
    """What one rank does at one of its points: a collective, a file or a key."""

    rank: int
    act: str
    number: int  # of the point, among those of its kind of this rank in this test, from 1; or EACH
    value: str = ""  # the signal, the exit code, the name of the exception, or the seconds
    after: bool = False  # once the point is over on this rank, instead of before it
    point: str = COLLECTIVE

    @property
    def breaks_the_world(self) -> bool:
        """Whether the rank is not to come to the end of its test, or is to lose its connections."""
        return self.act in (DIES, EXITS, RAISES, CUTS)

    @property
    def text(self) -> str:
        """Return the fault in the words in which a mark states it."""
        which = f"its {ordinal(self.number)} {self.point}" if self.number != EACH else f"each {self.point}"
        time = "after" if self.after else "at"
        by = "" if self.value == "SIGKILL" else f" by {self.value}"
        sentences = {
            DIES: f"dies{by} {time} {which}",
            EXITS: f"exits with {self.value} {time} {which}",
            RAISES: f"raises {self.value} {time} {which}",
            WAITS: f"waits {self.value} s before {which}",
            CUTS: f"is cut off at {which}",
            FLIPS: f"gets a flipped bit from {which}",
            LATE: f"gets a late result from {which}",
            FULL: f"has a full disk at {which}",
            DROPS: f"drops {which}",
        }
        return f"rank {self.rank} {sentences[self.act]}"


class Plan(msgspec.Struct, frozen=True):
    """The faults of one run of a test. If there is none, the points of one kind are only counted."""

    faults: list[Fault] = []
    counts: str = COLLECTIVE

    @property
    def points(self) -> set[str]:
        """The kinds of points that are counted."""
        return {fault.point for fault in self.faults} or {self.counts}

    @property
    def breaks_the_world(self) -> bool:
        return any(fault.breaks_the_world for fault in self.faults)


class Made(msgspec.Struct, frozen=True, array_like=True):
    """A collective that a rank made, a file that it opened, or a key that it set."""

    name: str  # as the user knows it: all_reduce
    location: str  # the user's line

    def __str__(self) -> str:
        return f"{self.name} at {self.location}" if self.location else self.name


class Counted(msgspec.Struct, frozen=True):
    """The points of one kind that a rank came to in a test with a plan."""

    number: int
    calls: list[Made] = []  # the first of them
    trouble: str = ""  # why a fault could not act at its point


class PointPart(msgspec.Struct, frozen=True, gc=False):
    """What became of a test with a fault at one point."""

    number: int
    outcome: str  # as of a whole test; not-applicable if the fault cannot happen there: a barrier has no result
    name: str = ""
    location: str = ""
    message: str = ""  # the first line of the failure
    seconds: float = 0.0


class SweepPart(msgspec.Struct, frozen=True, gc=False):
    """What became of a test with a fault at each point of a rank, one run for each."""

    fault: str
    points: list[PointPart] = []
