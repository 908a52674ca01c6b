"""What is seen of a test's collectives, how one of them is changed, and what became of a test with a changed one."""

from __future__ import annotations

import msgspec

#: The attribute of a test's last report that has its ``MutationPart``, as JSON: text travels with any report.
ATTRIBUTE = "everyrank_mutation"

#: The description of a group in which everyrank itself exchanges what it compares: none of its calls is the user's.
OUR_GROUP = "everyrank"

#: The ways to change a collective: the way, and how a text states it of a call. ``{}`` is a rank.
LEFT_OUT = "left-out"
MEAN = "mean"
SUM = "sum"
STALE = "stale"
ZERO = "zero"
TWICE = "twice"
WITHOUT = "without"
ROOT = "root"
NO_WAIT = "no-wait"
SEED = "seed"
TEXTS = {
    LEFT_OUT: "is left out",
    MEAN: "takes a mean instead of a sum",
    SUM: "takes a sum instead of a mean",
    STALE: "gives the result of the call before",
    ZERO: "gets zeros from rank {}",
    TWICE: "gets the part of rank {} twice",
    WITHOUT: "runs in another group, without rank {}",
    ROOT: "comes from rank {}",
    NO_WAIT: "is not waited for",
    SEED: "have one seed",
}


class Mutant(msgspec.Struct, frozen=True):
    """One collective of a test, changed in one way."""

    way: str
    name: str = ""  # of the call: all_reduce
    members: list[int] = []  # the ranks of its group; of a message, the rank that sends it
    group: int = 0  # among the groups that have these members
    number: int = -1  # among the calls of its group
    rank: int = 0  # whose input is changed, or the root
    source: int = -1  # the number of the call before


class Observe(msgspec.Struct, frozen=True):
    """Ask a rank to note the collectives of a test, and to change one if a mutant is given."""

    mutant: Mutant | None = None


class Call(msgspec.Struct, frozen=True, array_like=True):
    """A collective, or a message to one rank, as the process group of a rank saw it."""

    members: list[int]
    group: int
    number: int
    name: str  # as the user knows it: all_reduce
    location: str  # the user's line
    signature: str  # shapes and dtypes of what goes in and comes out, and the peer of a message
    reduces: str = ""  # sum, avg, ...; empty unless it reduces
    root: int = -1  # the rank that it comes from or goes to
    digest: int = 0  # of what the rank gave
    ways: list[str] = []  # ways in which this rank can change it


class Seen(msgspec.Struct, frozen=True):
    """What a rank saw in a test that was watched."""

    calls: list[Call] = []
    landed: bool | None = None  # whether a tensor was another one because of the mutant; None: its call was not made
    trouble: str = ""  # why the change could not be made


class MutantPart(msgspec.Struct, frozen=True, gc=False):
    """What became of a test with one changed collective."""

    way: str
    name: str
    location: str
    text: str  # the change: the all_reduce at model.py:88 is left out
    outcome: str  # killed, survived, redundant (the result was as before), unstable, not-landed
    by: str = ""  # what killed it: fail, timeout, crash, error
    message: str = ""  # the first line of the failure


class MutationPart(msgspec.Struct, frozen=True, gc=False):
    """What became of a test with one collective changed at a time."""

    calls: int = 0  # collectives and messages
    possible: int = 0  # how many mutants there are
    mutants: list[MutantPart] = []  # those that ran
    remarks: list[str] = []
    seed: int = 0  # of the sample
    floor: float = 0.0
    seconds: float = 0.0

    def count(self, outcome: str) -> int:
        return sum(mutant.outcome == outcome for mutant in self.mutants)

    @property
    def noticed(self) -> float:
        """Return the part of the changes that the test noticed, of those that made a difference."""
        killed, survived = self.count("killed"), self.count("survived")
        return killed / (killed + survived) if killed + survived else 1.0
