"""Whether ranks of a world that stands still wait for what can never come, and what that is, in a sentence.

A pure function of what the ranks themselves say. Where anything is not certain, it says nothing, and the world waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from everyrank.record import Collective, WitnessStatement
from everyrank.world import few_ranks_text

#: Who waits as long as this for a time limit of its own has none that a test could be about.
_NO_LIMIT = 1800.0
#: Collectives whose tensors have one shape and dtype on all ranks.
_SAME_ON_ALL = ("all_reduce", "broadcast", "reduce")
#: A sentence names so many groups of ranks; the rest are counted.
_MOST = 3


@dataclass(frozen=True)
class Deadlock:
    """Why no rank that is left in its test can go on."""

    cause: str
    numbers: dict[int, int]  # by rank: in which of its test's collectives of the default group it waits


def deadlock(said: Mapping[int, WitnessStatement], ended: frozenset[int], left: float) -> Deadlock | None:
    """Of a world that stands still: ``said`` by every rank, ``left`` seconds to its deadline."""
    inside = {rank: one for rank, one in said.items() if rank not in ended}
    if not inside or any(one.may_act for one in said.values()):
        return None
    if any(not one.operation or one.patience < min(left, _NO_LIMIT) for one in inside.values()):
        return None
    if not all(_in_vain(rank, said, ended) for rank in inside):
        return None
    return Deadlock(_cause(said, inside, ended), _numbers(inside))


def _in_vain(rank: int, said: Mapping[int, WitnessStatement], ended: frozenset[int]) -> bool:
    """Whether a rank waits for one that has ended its test, or that waits in something else."""
    own = said[rank]
    if own.number is None:  # a send or a receive
        others = [own.peer] if own.peer is not None else [member for member in own.members if member != rank]
        return all(other in ended or not _answers(said[other], rank, own) for other in others)
    return any(_is_elsewhere(said[member], own, member in ended) for member in own.members if member != rank)


def _is_elsewhere(other: WitnessStatement, own: WitnessStatement, ended: bool) -> bool:
    """Whether another member of the group will never come to a collective."""
    if not ended:
        return _call(other) != _call(own)
    numbers = [found.number for found in other.collectives if found.group == own.group]
    passed = _passed(other, own)
    if passed is None:
        return not numbers or max(numbers) < (own.number or 0)  # or else it went by too long ago to be known
    return _key(passed) != _call(own)


def _answers(other: WitnessStatement, rank: int, own: WitnessStatement) -> bool:
    """Whether a rank that waits in a send may be what another's receive waits for, and the other way round."""
    fits = {own.operation, other.operation} == {"send", "recv"} and own.group == other.group
    return fits and other.peer in (rank, None)


def _call(one: WitnessStatement) -> tuple[object, ...]:
    """Equal for ranks that wait for each other in one collective."""
    current = _current(one)
    return _key(current) if current else (one.group, one.operation)


def _key(one: Collective) -> tuple[object, ...]:
    return one.group, one.number, one.name, one.tensors if one.name in _SAME_ON_ALL else ""


def _current(one: WitnessStatement) -> Collective | None:
    same = (found for found in one.collectives if (found.group, found.number) == (one.group, one.number))
    return next(same, None)


def _numbers(inside: Mapping[int, WitnessStatement]) -> dict[int, int]:
    counted = {rank: _number(one) for rank, one in inside.items()}
    return {rank: number for rank, number in counted.items() if number is not None}


def _number(one: WitnessStatement) -> int | None:
    """Which collective of its test that is, of those of its group; unknown where a test has made very many."""
    before = one.before.get(one.group)
    return None if before is None or one.number is None else one.number - before


# --- in words ----------------------------------------------------------------------------------------


def _cause(
    said: Mapping[int, WitnessStatement], inside: Mapping[int, WitnessStatement], ended: frozenset[int]
) -> str:
    calls = {_call(one) for one in inside.values()}
    first = inside[min(inside)]
    missed = [rank for rank in sorted(ended) if rank in first.members]
    if len(calls) == 1 and missed and not any(_passed(said[rank], first) for rank in missed):
        verb = "its" if len(missed) == 1 else "their"
        return f"{few_ranks_text(missed)} ended {verb} test without {_due(first)} ({first.location})"
    came = {rank: passed for rank in missed if (passed := _passed(said[rank], first)) is not None}
    clauses = _waits(inside, with_tensors=bool(came))
    for rank, passed in came.items():
        if _key(passed) != _call(first):
            tensors = f" of {passed.tensors}" if passed.tensors else ""
            clauses.append(f"rank {rank} ended its test, in which that was {passed.name}{tensors}")
    gone = [rank for rank in missed if rank not in came]
    if gone:
        clauses.append(f"{few_ranks_text(gone)} ended {'its' if len(gone) == 1 else 'their'} test")
    more = len(clauses) - _MOST
    if more > 0:
        clauses[_MOST:] = [f"and {more} more group{'s' if more > 1 else ''}"]
    return "; ".join(clauses)


def _due(one: WitnessStatement) -> str:
    """What a rank that ended its test did not do."""
    if one.operation == "recv":
        return "sending what this recv waits for"
    return "receiving what this send offers" if one.operation == "send" else f"coming to this {one.operation}"


def _passed(one: WitnessStatement, waiting: WitnessStatement) -> Collective | None:
    """The collective of this rank that has the number of the one that another waits in, if it came to so many."""
    if waiting.number is None:
        return None
    numbered = (found for found in one.collectives if (found.group, found.number) == (waiting.group, waiting.number))
    return next(numbered, None)


def _waits(inside: Mapping[int, WitnessStatement], with_tensors: bool) -> list[str]:
    """``rank 0 waits in its 5th collective, all_reduce at a.py:3``, for each group of ranks."""
    together: dict[tuple[object, ...], list[int]] = {}
    for rank, one in sorted(inside.items()):
        together.setdefault((*_call(one), one.location), []).append(rank)
    names = [(one.group, one.number, one.operation) for one in inside.values()]
    # Some may differ in nothing but their tensors.
    with_tensors = with_tensors or len(set(names)) < len({_call(one) for one in inside.values()})
    clauses: list[str] = []
    for ranks in together.values():
        one = inside[ranks[0]]
        own, number = _current(one), _number(one)
        tensors = f" of {own.tensors}" if with_tensors and own is not None and own.tensors else ""
        alone = len(ranks) == 1
        verb = " in" if clauses and number is not None else " waits in" if alone else " wait in"
        which = f" {'its' if alone else 'their'} {_ordinal(number)}" if number is not None else ""
        noun = "," if which and clauses else " collective," if which else ""
        clauses.append(f"{few_ranks_text(ranks)}{verb}{which}{noun} {one.operation}{tensors} at {one.location}")
    return clauses


def _ordinal(number: int) -> str:
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
