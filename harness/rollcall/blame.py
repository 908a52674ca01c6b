"""Name the ranks to blame when a world did not end well. The rules are the table ``RULES``.

This is a pure function of the evidence about each rank. Without evidence it names no rank. The roll call, the run
file and the page all show its answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Evidence:
    """The evidence about one rank."""

    rank: int
    trouble: tuple[float, str] | None = None  # when it failed or died, and a text that is equal for equal failures
    ended: bool = False  # it ended its test
    waits: bool | None = (
        None  # whether it waits for other ranks, in a collective, a receive or an RPC; None if unknown
    )
    operation: str = ""  # the operation that it waits in
    location: str = ""  # the user's line that called the operation
    number: int | None = None  # the number of that collective in the group of all, from 1
    handles: bool = False  # it is handling an exception
    misled: bool = False  # it names another root of a collective than the rank that takes itself for it

    @property
    def inside(self) -> bool:
        """Return whether the rank is still in its test and has not failed."""
        return self.trouble is None and not self.ended


@dataclass(frozen=True)
class Blame:
    """The ranks to blame, and the rule that names them; no ranks if nothing distinguishes them."""

    ranks: tuple[int, ...] = ()
    rule: str = ""


#: The rule that names ranks which ended their test.
ENDED = "ended its test"

Rule = Callable[[Sequence[Evidence]], list[int]]


def _bad_first(ranks: Sequence[Evidence]) -> list[int]:
    """Return the rank that failed or died first, and all that ended in the same way. Others may be victims."""
    troubles = [rank.trouble for rank in ranks if rank.trouble is not None]
    return [rank.rank for rank in ranks if rank.trouble is not None and rank.trouble[1] == min(troubles)[1]]


def _handles_exception(ranks: Sequence[Evidence]) -> list[int]:
    """Return the ranks that are handling an exception: it took them where they are."""
    return [rank.rank for rank in ranks if rank.inside and rank.handles]


def _busy_elsewhere(ranks: Sequence[Evidence]) -> list[int]:
    """Return the ranks that do not wait for other ranks."""
    return [rank.rank for rank in ranks if rank.inside and rank.waits is False]


def _ended(ranks: Sequence[Evidence]) -> list[int]:
    """Return the ranks that ended their test, if all others wait and the ended ones are at most half of the world."""
    ended = [rank.rank for rank in ranks if rank.ended]
    return ended if _all_wait(ranks) and 2 * len(ended) <= len(ranks) else []


def _other_root(ranks: Sequence[Evidence]) -> list[int]:
    """Return the ranks that wait in a broadcast from another rank than the one that broadcasts, and the like."""
    return [rank.rank for rank in ranks if rank.inside and rank.misled]


def _in_another(ranks: Sequence[Evidence]) -> list[int]:
    """Return the ranks that wait in another call than the majority."""
    if any(rank.ended for rank in ranks) or not _all_wait(ranks):
        return []
    counted = all(rank.number is not None for rank in ranks)
    calls = [(rank.operation, rank.number if counted else rank.location) for rank in ranks]
    call, most = Counter(calls).most_common(1)[0]
    return [rank.rank for rank, own in zip(ranks, calls, strict=True) if own != call] if 2 * most > len(ranks) else []


def _behind(ranks: Sequence[Evidence]) -> list[int]:
    """Return the ranks that wait in the earliest collective."""
    numbers = [rank.number for rank in ranks if rank.number is not None]
    if any(rank.ended for rank in ranks) or not _all_wait(ranks) or len(numbers) < len(ranks):
        return []
    return [rank.rank for rank in ranks if rank.number == min(numbers)]


def _all_wait(ranks: Sequence[Evidence]) -> bool:
    inside = [rank for rank in ranks if rank.inside]
    return bool(inside) and all(rank.waits for rank in inside)


#: The strongest evidence comes first. A rule that names every rank does not count, except the first rule.
RULES: tuple[tuple[str, Rule], ...] = (
    ("failed first", _bad_first),
    ("handles an exception", _handles_exception),
    ("does not wait", _busy_elsewhere),
    (ENDED, _ended),
    ("names another root", _other_root),
    ("waits in another call", _in_another),
    ("is behind", _behind),
)


def blame(ranks: Sequence[Evidence]) -> Blame:
    """Apply the rules in order; the first that distinguishes some ranks from the others decides."""
    for name, rule in RULES:
        blamed = rule(ranks)
        if blamed and (len(blamed) < len(ranks) or rule is _bad_first):
            return Blame(tuple(sorted(blamed)), name)
    return Blame()
