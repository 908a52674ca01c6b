"""The mutants of a test: what its ranks have seen of its collectives, and each of these changed in each way."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from everyrank.model.mutation import ROOT, SEED, STALE, TEXTS, TWICE, WITHOUT, ZERO, Call, Mutant, Seen

#: Ways that change the part of one rank.
_OF_A_RANK = (ZERO, TWICE, WITHOUT)
#: Collectives to which each rank gives something.
_FROM_ALL = ("all_reduce", "all_gather", "reduce", "gather", "all_to_all")


@dataclass(frozen=True)
class Planned:
    """A mutant, and the call that it changes."""

    mutant: Mutant
    call: Call | None = None
    nth: int = 0  # among the calls of its line, from 1
    times: int = 1

    @property
    def site(self) -> tuple[str, str, str]:
        """What one line of the report is about."""
        return (self.call.location, self.call.name, self.mutant.way) if self.call else ("", "", self.mutant.way)

    @property
    def text(self) -> str:
        """Return the change as a clause: the all_reduce at model.py:88 is left out."""
        change = TEXTS[self.mutant.way].format(self.mutant.rank)
        if self.call is None:
            return f"all ranks {change}"
        which = f" (call {self.nth} of {self.times})" if self.times > 1 else ""
        return f"the {self.call.name} at {self.call.location}{which} {change}"


@dataclass(frozen=True)
class Collected:
    """A collective as its ranks have seen it."""

    call: Call  # as the first of its ranks has seen it
    digests: tuple[int, ...]


def collected(seen: Sequence[Seen]) -> list[Collected]:
    """Return the collectives and the messages of a test, each once, in an order in which they came."""
    found: dict[tuple[object, ...], list[Call]] = defaultdict(list)
    for rank in seen:
        for call in rank.calls:
            found[call.name == "send", tuple(call.members), call.group, call.number].append(call)
    return [Collected(calls[0], tuple(call.digest for call in calls)) for calls in found.values()]


def remarks(calls: Sequence[Collected], size: int) -> list[str]:
    """Return what is remarkable about the collectives of a test, without changing any."""
    if not calls:
        return ["this multi-rank test made no collective that can be changed"]
    given = [call for call in calls if call.call.name.startswith(_FROM_ALL) and len(call.digests) > 1]
    if given and all(len(set(call.digests)) == 1 for call in given):
        which = (
            f"each of its {len(given)} collectives that take" if len(given) > 1 else "the one collective that takes"
        )
        return [f"all ranks had equal inputs in {which} something from all ranks"]
    return []


def planned(calls: Sequence[Collected], size: int, seed: int) -> list[Planned]:
    """Return all mutants of a test in the order in which to run them.

    A fair sample is a beginning of this list: each way at each line comes once before any comes a second time. The
    seed chooses which of a line's calls is first, and the rank whose input changes.
    """
    draw = random.Random(seed)
    sites: dict[tuple[str, str, str], list[Planned]] = defaultdict(list)
    at_line: dict[tuple[str, str], list[Call]] = defaultdict(list)
    for found in calls:
        at_line[found.call.location, found.call.name].append(found.call)
    for found in calls:
        call = found.call
        same = at_line[call.location, call.name]
        for way in call.ways:
            source = _before(call, calls) if way == STALE else -1
            if way == STALE and source < 0:
                continue
            mutant = Mutant(way, call.name, call.members, call.group, call.number, _target(way, call, draw), source)
            changed = Planned(mutant, call, same.index(call) + 1, len(same))
            sites[changed.site].append(changed)
    if size > 1 and calls:
        sites["", "", SEED].append(Planned(Mutant(SEED)))
    rows = list(sites.values())
    draw.shuffle(rows)
    for row in rows:
        draw.shuffle(row)
    turns = max(map(len, rows), default=0)
    return [row[turn] for turn in range(turns) for row in rows if turn < len(row)]


def _target(way: str, call: Call, draw: random.Random) -> int:
    """Return the rank that a way is about."""
    if way == ROOT:
        return draw.choice([rank for rank in call.members if rank != call.members[call.root]])
    if call.name == "scatter":
        return call.members[call.root]
    return draw.choice(call.members) if way in _OF_A_RANK else call.members[0]


def _before(call: Call, calls: Sequence[Collected]) -> int:
    """Return the number of the last call of this kind before this one in its group; -1 if there is none."""
    key = (call.name, call.members, call.group, call.signature)
    earlier = (
        other.call.number
        for other in calls
        if (other.call.name, other.call.members, other.call.group, other.call.signature) == key
        and other.call.number < call.number
    )
    return max(earlier, default=-1)
