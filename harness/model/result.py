"""The result of a test, from the ranks to the page: one shape for the harness, other plugins, and the run file."""

from __future__ import annotations

from typing import Any

import msgspec
from everyrank.model.fault import SweepPart
from everyrank.model.mutation import MutationPart


# A result cannot refer to itself, so the garbage collector skips its parts.
class ResultPart(msgspec.Struct, frozen=True, gc=False):
    """A part of a result. The run file has it unchanged."""


class LeakPart(ResultPart, frozen=True):
    """Something that a test left behind on some ranks."""

    kind: str
    what: str
    ranks: list[int]


class StancePart(ResultPart, frozen=True):
    """An item of the roll call: ranks with the same stack, innermost frame first. Ranks to blame come first."""

    ranks: list[int]
    doing: str  # one line, as the roll call prints it
    frames: list[str] = []
    native: list[str] = []
    code: list[str] = []  # the line of code at each frame; empty for a frame outside of the user's own files


class BlamePart(ResultPart, frozen=True):
    """The ranks to blame for a bad end, by evidence."""

    ranks: list[int]
    #: failed first, handles an exception, does not wait, ended its test, names another root, waits in another call,
    #: is behind
    rule: str


class RankEnd(ResultPart, frozen=True):
    """What became of one rank, as far as the run file has it."""

    rank: int
    outcome: str  # passed, failed, skipped, lost (dead, or gone without a record), cut by everyrank, died as planned
    phase: str = ""  # the phase in which it failed or was lost
    text: str = ""  # one line: the failure in brief, the exit status, or the reason of the skip
    where: str = ""  # the frame of the user's code in which the failure was raised
    seconds: float = 0.0


class RankResult(RankEnd, frozen=True):
    """What became of one rank."""

    notes: dict[str, Any] = {}


class TestResult(msgspec.Struct):
    """What the harness knows of a test, except what its reports hold."""

    __test__ = False  # for pytest: this is not a class of tests

    rule: str  # the row of the verdict's truth table; skipped or refused for a test that got no world
    size: int
    repeat: str  # the command line that repeats it
    worlds_up: int = 0  # the worlds that are kept or forked ahead
    world: int | None = None  # its number; none for a test that got no world
    passes_alone: bool = False
    not_kept: str = ""  # why its world served no further test
    remarks: list[str] = []  # on a test that passed
    ranks: list[RankResult] = []
    leaks: list[LeakPart] = []
    rollcall: list[StancePart] = []
    blame: BlamePart | None = None
    mutation: MutationPart | None = None  # with --mutate
    sweep: SweepPart | None = None  # of a fault at each point
