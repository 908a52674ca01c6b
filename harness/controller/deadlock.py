"""Decide whether the ranks of a world that stands still can never continue, and state the cause in a sentence.

This is a pure function of the ranks' own statements. If anything is uncertain, it returns None, and the world waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from everyrank.controller.parting import parting
from everyrank.model.counts import count
from everyrank.model.ranks import few_ranks_text, ordinal
from everyrank.wire.messages import Begun, Collective, WitnessStatement

#: A time limit of a wait that is this long, in seconds, is not what a test is about.
_NO_LIMIT = 1800.0
#: Collectives whose tensors have one shape and dtype on all ranks.
_SAME_ON_ALL = ("all_reduce", "broadcast", "reduce")
#: Collectives that one rank sends and the others receive.
_FROM_ROOT = ("broadcast", "scatter")
#: torch's name of the default group; and names of groups are no shorter than this if they are hashes.
_DEFAULT = "0"
_HASH = 8
#: A sentence describes this many groups of ranks, and counts the rest.
_MOST = 3


@dataclass(frozen=True)
class Deadlock:
    """Why no rank that is still in its test can continue."""

    cause: str
    numbers: dict[int, int]  # by rank: the number of the collective in which it waits, if all are in one group
    misled: frozenset[int] = frozenset()  # wait for a root that does not take itself for it, while another rank does


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
    clauses = [_cause(statements, inside, ended), parting(statements, inside)]
    return Deadlock("; ".join(filter(None, clauses)), _numbers(inside), _misled(inside))


def _in_vain(rank: int, statements: Mapping[int, WitnessStatement], ended: frozenset[int]) -> bool:
    """Return whether a rank waits for a rank that has ended its test, or that waits in another call."""
    own = statements[rank]
    others = {other: statement for other, statement in statements.items() if other != rank}
    if own.kind == "message":
        peers = [own.peer] if own.peer is not None else [member for member in own.members if member != rank]
        return all(peer in ended or not _answers(statements[peer], rank, own) for peer in peers)
    if own.kind == "group":  # which no member leaves before all have come
        return any(member in ended or others[member].kind != "group" for member in own.members if member in others)
    # Nothing completes a future but a thread, of which none can act, or a collective.
    if own.kind == "collective" and not any(
        _is_elsewhere(others[member], own, member in ended) for member in own.members if member in others
    ):
        return False
    return all(
        any(_has_not_begun(others[member], begun) for member in begun.members if member in others)
        for begun in own.others
    )


def _is_elsewhere(other: WitnessStatement, own: WitnessStatement, ended: bool) -> bool:
    """Return whether another member of the group will never reach a collective."""
    if not ended and not own.sleep:
        return not _is_same_call(other, own)
    passed = _passed(other, own)
    if passed is None:
        # If its last one is later, it was too long ago to be recorded.
        return _last(other, own.group) < (own.number or 0)
    return _key(passed) != _call(own)


def _has_not_begun(other: WitnessStatement, begun: Begun) -> bool:
    """Return whether another rank, which acts no more, has not begun this collective."""
    return _last(other, begun.group) < begun.number


def _last(statement: WitnessStatement, group: str) -> int:
    """Return the number of a rank's last collective in this group in its test."""
    recorded = (call.number for call in statement.collectives if call.group == group)
    return max(statement.reached.get(group, 0), *recorded, 0)


def _answers(other: WitnessStatement, rank: int, own: WitnessStatement) -> bool:
    """Return whether one rank waits in a send and the other in the receive that may match it."""
    if "message" not in (own.kind, other.kind) or other.kind != own.kind or other.peer not in (rank, None):
        return False
    if not {own.operation, other.operation} <= {"send", "recv"}:
        return True  # a Work's wait(): for what is not known
    return own.operation != other.operation and (own.group, own.tag) == (other.group, other.tag)


def _is_same_call(own: WitnessStatement, other: WitnessStatement) -> bool:
    """Return whether two ranks wait for each other in one collective."""
    roots = {own.root, other.root} - {None}
    return _call(own) == _call(other) and len(roots) < 2


def _call(statement: WitnessStatement) -> tuple[object, ...]:
    """Return a key that is equal for ranks that wait for each other in one collective."""
    current = _current(statement)
    return _key(current) if current else (statement.kind, statement.group, statement.operation)


def _key(collective: Collective) -> tuple[object, ...]:
    return (
        collective.group,
        collective.number,
        collective.name,
        collective.tensors if collective.name in _SAME_ON_ALL else "",
    )


def _current(statement: WitnessStatement) -> Collective | None:
    return _passed(statement, statement)


def _misled(inside: Mapping[int, WitnessStatement]) -> frozenset[int]:
    """Return the ranks that name another root than the one that takes itself for it, in the same collective."""
    calls: dict[tuple[object, ...], dict[int, int]] = {}
    for rank, statement in inside.items():
        if statement.root is not None:
            calls.setdefault(_call(statement), {})[rank] = statement.root
    misled: list[int] = []
    for roots in calls.values():
        themselves = {root for rank, root in roots.items() if rank == root}
        misled += [rank for rank, root in roots.items() if themselves and root not in themselves]
    return frozenset(misled)


def _numbers(inside: Mapping[int, WitnessStatement]) -> dict[int, int]:
    if len({statement.group for statement in inside.values() if statement.number is not None}) > 1:
        return {}
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
    handles = any(statement.handles for statement in inside.values())
    if len(calls) == 1 and missed and not handles and not any(_passed(statements[rank], first) for rank in missed):
        verb = "its" if len(missed) == 1 else "their"
        return f"{few_ranks_text(missed)} ended {verb} test without {_due(first)} ({first.location})"
    came = {rank: passed for rank in missed if (passed := _passed(statements[rank], first)) is not None}
    passed_by = _passed_with_other_tensors(inside)
    clauses = _waits(inside, with_tensors=bool(came or passed_by)) + passed_by
    for rank, passed in came.items():
        if _key(passed) != _call(first):
            tensors = f" of {passed.tensors}" if passed.tensors else ""
            clauses.append(f"rank {rank} ended its test, in which that was {passed.name}{tensors}")
    gone = [rank for rank in missed if rank not in came]
    if gone:
        clauses.append(f"{few_ranks_text(gone)} ended {'its' if len(gone) == 1 else 'their'} test")
    more = len(clauses) - _MOST
    if more > 0:
        clauses[_MOST:] = [f"and {count(more, 'more group')}"]
    return "; ".join(clauses)


def _passed_with_other_tensors(inside: Mapping[int, WitnessStatement]) -> list[str]:
    """Return a clause about a rank that has left the collective in which another waits, with other tensors."""
    for waiting in inside.values():
        for rank, statement in inside.items():
            passed = _passed(statement, waiting)
            if passed is not None and _current(statement) != passed and _key(passed) != _call(waiting):
                which = ordinal(_number(waiting) or passed.number)
                return [f"rank {rank} has left its {which}, {passed.name} of {passed.tensors}"]
    return []


def _due(statement: WitnessStatement) -> str:
    """Describe what a rank that ended its test did not do."""
    if statement.kind != "message":
        return f"reaching this {statement.operation}"
    tag = f" with the tag {statement.tag}" if statement.tag else ""
    due = {"recv": f"sending what this recv{tag} waits for", "send": f"receiving what this send{tag} offers"}
    return due.get(statement.operation, f"sending or receiving what this {statement.operation} waits for")


def _passed(statement: WitnessStatement, waiting: WitnessStatement) -> Collective | None:
    """Return this rank's collective with the number of the one in which another rank waits, or None."""
    if waiting.number is None:
        return None
    position = waiting.group, waiting.number
    return next((call for call in statement.collectives if (call.group, call.number) == position), None)


def _waits(inside: Mapping[int, WitnessStatement], with_tensors: bool) -> list[str]:
    """Return a clause for each group: ``rank 0 waits in its 5th collective, all_reduce at a.py:3``."""
    together: dict[tuple[object, ...], list[int]] = {}
    for rank, statement in sorted(inside.items(), key=lambda item: (item[1].handles is None, item[0])):
        key = (*_call(statement), statement.root, statement.location, statement.handles)
        together.setdefault(key, []).append(rank)
    calls = {_call(statement) for statement in inside.values()}
    names = {(statement.group, statement.number, statement.operation) for statement in inside.values()}
    with_tensors = with_tensors or len(names) < len(calls)  # some may differ in nothing but their tensors
    with_groups = len({statement.group for statement in inside.values() if statement.number is not None}) > 1
    with_roots = len({statement.root for statement in inside.values()} - {None}) > 1
    clauses: list[str] = []
    for ranks in together.values():
        statement = inside[ranks[0]]
        own, number = _current(statement), _number(statement)
        tensors = f" of {own.tensors}" if with_tensors and own is not None and own.tensors else ""
        alike = statement.awaits and all(inside[rank].awaits == statement.awaits for rank in ranks)
        operation = statement.awaits if alike and statement.kind == "message" else statement.operation
        call = f"{operation}{_root(statement) if with_roots else ''}{tensors} at {statement.location}"
        alone = len(ranks) == 1
        again = any(" collective" in clause for clause in clauses)
        verb = " in" if again and number is not None else " waits in" if alone else " wait in"
        which = f" {'its' if alone else 'their'} {ordinal(number)}" if number is not None else ""
        noun = "" if again or not which else " collective"
        group = f" of {_group(statement)}" if with_groups and which else ""
        comma = "," if which else ""
        reason = " for a future that nothing can complete" if statement.kind == "future" else ""
        if statement.handles is not None:
            reason += f", while handling {statement.handles.beside(statement.location)}"
        clauses.append(f"{few_ranks_text(ranks)}{verb}{which}{noun}{group}{comma} {call}{reason}")
    return clauses


def _group(statement: WitnessStatement) -> str:
    if not statement.made_at:
        return "the default group" if statement.group == _DEFAULT else f"group {statement.group}"
    # torch numbers groups; one that not all ranks make together has a long hash for a name.
    name = f" {statement.group}" if len(statement.group) < _HASH else ""
    return f"group{name} ({few_ranks_text(statement.members)}, made at {statement.made_at})"


def _root(statement: WitnessStatement) -> str:
    if statement.root is None:
        return ""
    return f" {'from' if statement.operation in _FROM_ROOT else 'to'} rank {statement.root}"
