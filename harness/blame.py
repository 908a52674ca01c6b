"""Who is to blame when a world came to a bad end. The rules are the table ``RULES``; without evidence it is nobody.

A pure function of what is known of each rank: the roll call, the run file and the page all show its answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Evidence:
    """What is known of one rank."""

    rank: int
    trouble: tuple[float, str] | None = None  # when it failed or died, and how: one text for what is the same
    ended: bool = False  # it ended its test
    waits: bool | None = (
        None  # whether it waits for other ranks, in a collective, a receive or an RPC; None: not known
    )
    operation: str = ""  # what it waits in
    where: str = ""  # the user's line that called it
    number: int | None = None  # which collective of the default group that is, counted from 1

    @property
    def inside(self) -> bool:
        """Whether it is still in its test, and nothing went wrong with it."""
        return self.trouble is None and not self.ended


@dataclass(frozen=True)
class Blame:
    """The ranks to blame, and the rule that names them; no ranks, where nothing tells one from the others."""

    ranks: tuple[int, ...] = ()
    rule: str = ""


#: The rule that names ranks which ended their test.
ENDED = "ended its test"

Rule = Callable[[Sequence[Evidence]], list[int]]


def _bad_first(ranks: Sequence[Evidence]) -> list[int]:
    """Who failed or died first, with those that came to the same end: the others may only be its victims."""
    troubles = [rank.trouble for rank in ranks if rank.trouble is not None]
    return [rank.rank for rank in ranks if rank.trouble is not None and rank.trouble[1] == min(troubles)[1]]


def _busy_elsewhere(ranks: Sequence[Evidence]) -> list[int]:
    """Who does not wait for other ranks, while others do."""
    return [rank.rank for rank in ranks if rank.inside and rank.waits is False]


def _ended(ranks: Sequence[Evidence]) -> list[int]:
    """Who ended its test, while all that are left wait; unless that was the greater part of the world."""
    ended = [rank.rank for rank in ranks if rank.ended]
    return ended if _all_wait(ranks) and 2 * len(ended) <= len(ranks) else []


def _in_another(ranks: Sequence[Evidence]) -> list[int]:
    """Who waits in another call than most do."""
    if any(rank.ended for rank in ranks) or not _all_wait(ranks):
        return []
    counted = all(rank.number is not None for rank in ranks)
    calls = [(rank.operation, rank.number if counted else rank.where) for rank in ranks]
    call, most = Counter(calls).most_common(1)[0]
    return [rank.rank for rank, own in zip(ranks, calls, strict=True) if own != call] if 2 * most > len(ranks) else []


def _behind(ranks: Sequence[Evidence]) -> list[int]:
    """Who waits in an earlier collective than the others."""
    numbers = [rank.number for rank in ranks if rank.number is not None]
    if any(rank.ended for rank in ranks) or not _all_wait(ranks) or len(numbers) < len(ranks):
        return []
    return [rank.rank for rank in ranks if rank.number == min(numbers)]


def _all_wait(ranks: Sequence[Evidence]) -> bool:
    inside = [rank for rank in ranks if rank.inside]
    return bool(inside) and all(rank.waits for rank in inside)


#: In the order in which evidence outranks other evidence. A rule that names every rank names nobody, but the first.
RULES: tuple[tuple[str, Rule], ...] = (
    ("failed first", _bad_first),
    ("does not wait", _busy_elsewhere),
    (ENDED, _ended),
    ("waits in another call", _in_another),
    ("is behind", _behind),
)


def blame(ranks: Sequence[Evidence]) -> Blame:
    """The first rule that tells some ranks from the others decides."""
    for name, rule in RULES:
        found = rule(ranks)
        if found and (len(found) < len(ranks) or rule is _bad_first):
            return Blame(tuple(sorted(found)), name)
    return Blame()
