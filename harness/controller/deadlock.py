"""Decide whether the ranks of a world that stands still can never continue, and state the cause in a sentence.

This is a pure function of the ranks' own statements. If anything is uncertain, it returns None, and the world waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from everyrank.model.ranks import few_ranks_text
from everyrank.wire.messages import Collective, WitnessStatement

#: A time limit of a wait that is this long, in seconds, is not what a test is about.
_NO_LIMIT = 1800.0
#: Collectives whose tensors have one shape and dtype on all ranks.
_SAME_ON_ALL = ("all_reduce", "broadcast", "reduce")
#: A sentence describes this many groups of ranks, and counts the rest.
_MOST = 3


@dataclass(frozen=True)
class Deadlock:
    """Why no rank that is still in its test can continue."""

    cause: str
    numbers: dict[int, int]  # by rank: the number of the collective of the default group in which it waits


def deadlock(statements: Mapping[int, WitnessStatement], ended: frozenset[int], left: float) -> Deadlock | None:
    """Return the deadlock of a world that stands still, or None.

    ``statements`` has one of every rank; ``left`` is the time to the deadline in seconds.
    """
    inside = {rank: statement for rank, statement in statements.items() if rank not in ended}
    if not inside or any(statement.may_act for statement in statements.values()):
        return None
    if any(not statement.operation or statement.patience < min(left, _NO_LIMIT) for statement in inside.values()):
        return None
    if not all(_in_vain(rank, statements, ended) for rank in inside):
        return None
    return Deadlock(_cause(statements, inside, ended), _numbers(inside))


def _in_vain(rank: int, statements: Mapping[int, WitnessStatement], ended: frozenset[int]) -> bool:
    """Return whether a rank waits for a rank that has ended its test, or that waits in another call."""
    own = statements[rank]
    if own.number is None:  # a send or a receive
        others = [own.peer] if own.peer is not None else [member for member in own.members if member != rank]
        return all(other in ended or not _answers(statements[other], rank, own) for other in others)
    return any(_is_elsewhere(statements[member], own, member in ended) for member in own.members if member != rank)


def _is_elsewhere(other: WitnessStatement, own: WitnessStatement, ended: bool) -> bool:
    """Return whether another member of the group will never reach a collective."""
    if not ended:
        return _call(other) != _call(own)
    numbers = [found.number for found in other.collectives if found.group == own.group]
    passed = _passed(other, own)
    if passed is None:
        return not numbers or max(numbers) < (own.number or 0)  # otherwise it was too long ago to be recorded
    return _key(passed) != _call(own)


def _answers(other: WitnessStatement, rank: int, own: WitnessStatement) -> bool:
    """Return whether one rank waits in a send and the other in the receive that may match it."""
    fits = {own.operation, other.operation} == {"send", "recv"} and own.group == other.group
    return fits and other.peer in (rank, None)


def _call(statement: WitnessStatement) -> tuple[object, ...]:
    """Return a key that is equal for ranks that wait for each other in one collective."""
    current = _current(statement)
    return _key(current) if current else (statement.group, statement.operation)


def _key(collective: Collective) -> tuple[object, ...]:
    return (
        collective.group,
        collective.number,
        collective.name,
        collective.tensors if collective.name in _SAME_ON_ALL else "",
    )


def _current(statement: WitnessStatement) -> Collective | None:
    same = (
        found for found in statement.collectives if (found.group, found.number) == (statement.group, statement.number)
    )
    return next(same, None)


def _numbers(inside: Mapping[int, WitnessStatement]) -> dict[int, int]:
    counted = {rank: _number(statement) for rank, statement in inside.items()}
    return {rank: number for rank, number in counted.items() if number is not None}


def _number(statement: WitnessStatement) -> int | None:
    """Return the number of a rank's collective in its test and group; None if the test has made too many to know."""
    before = statement.before.get(statement.group)
    return None if before is None or statement.number is None else statement.number - before


# --- the sentence ----------------------------------------------------------------------------------------


def _cause(
    statements: Mapping[int, WitnessStatement], inside: Mapping[int, WitnessStatement], ended: frozenset[int]
) -> str:
    calls = {_call(statement) for statement in inside.values()}
    first = inside[min(inside)]
    missed = [rank for rank in sorted(ended) if rank in first.members]
    if len(calls) == 1 and missed and not any(_passed(statements[rank], first) for rank in missed):
        verb = "its" if len(missed) == 1 else "their"
        return f"{few_ranks_text(missed)} ended {verb} test without {_due(first)} ({first.location})"
    came = {rank: passed for rank in missed if (passed := _passed(statements[rank], first)) is not None}
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


def _due(statement: WitnessStatement) -> str:
    """Describe what a rank that ended its test did not do."""
    if statement.operation == "recv":
        return "sending what this recv waits for"
    return (
        "receiving what this send offers" if statement.operation == "send" else f"reaching this {statement.operation}"
    )


def _passed(statement: WitnessStatement, waiting: WitnessStatement) -> Collective | None:
    """Return this rank's collective with the number of the one in which another rank waits, or None."""
    if waiting.number is None:
        return None
    numbered = (
        found for found in statement.collectives if (found.group, found.number) == (waiting.group, waiting.number)
    )
    return next(numbered, None)


def _waits(inside: Mapping[int, WitnessStatement], with_tensors: bool) -> list[str]:
    """Return a clause for each group: ``rank 0 waits in its 5th collective, all_reduce at a.py:3``."""
    together: dict[tuple[object, ...], list[int]] = {}
    for rank, statement in sorted(inside.items()):
        together.setdefault((*_call(statement), statement.location), []).append(rank)
    names = [(statement.group, statement.number, statement.operation) for statement in inside.values()]
    # Some may differ in nothing but their tensors.
    with_tensors = with_tensors or len(set(names)) < len({_call(statement) for statement in inside.values()})
    clauses: list[str] = []
    for ranks in together.values():
        statement = inside[ranks[0]]
        own, number = _current(statement), _number(statement)
        tensors = f" of {own.tensors}" if with_tensors and own is not None and own.tensors else ""
        alone = len(ranks) == 1
        verb = " in" if clauses and number is not None else " waits in" if alone else " wait in"
        which = f" {'its' if alone else 'their'} {_ordinal(number)}" if number is not None else ""
        noun = "," if which and clauses else " collective," if which else ""
        clauses.append(
            f"{few_ranks_text(ranks)}{verb}{which}{noun} {statement.operation}{tensors} at {statement.location}"
        )
    return clauses


def _ordinal(number: int) -> str:
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
