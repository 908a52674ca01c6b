"""Name the ranks of a world in what its survivors state after a planned death: they may have been numbered anew."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
from everyrank.wire.messages import WitnessStatement


def in_the_world(
    statements: Mapping[int, WitnessStatement], gone: frozenset[int]
) -> Mapping[int, WitnessStatement] | None:
    """Return what the ranks state that are left, with the ranks of the world in it.

    Return None if that is not certain, or if a rank waits in a group that has one that is gone: by what the kernel
    does with the connections of a dead process, it may still go on.
    """
    named = _named(statements, len(statements) + len(gone))
    if named is None:
        return None
    found = {rank: _renumbered(statement, named) for rank, statement in statements.items()}
    members = {member for statement in found.values() for member in _members(statement)}
    return None if members & gone else found


def _named(statements: Mapping[int, WitnessStatement], size: int) -> Callable[[int], int] | None:
    """Return the rank of the world for a rank of the default group."""
    positions = {rank: statement.position for rank, statement in statements.items()}
    if all(position == (rank, size) for rank, position in positions.items()):
        return lambda rank: rank  # the world's own group
    by_position = {position: rank for rank, position in positions.items()}
    left = len(positions)
    if by_position.keys() != {(number, left) for number in range(left)}:
        return None  # some are in one group, and some in another
    return lambda number: by_position[number, left]


def _renumbered(statement: WitnessStatement, named: Callable[[int], int]) -> WitnessStatement:
    def other(rank: int | None) -> int | None:
        return None if rank is None else named(rank)

    others = [msgspec.structs.replace(begun, members=[*map(named, begun.members)]) for begun in statement.others]
    return msgspec.structs.replace(
        statement,
        members=[*map(named, statement.members)],
        root=other(statement.root),
        peer=other(statement.peer),
        others=others,
        awaits="",  # which has the peer's number in the group
    )


def _members(statement: WitnessStatement) -> set[int]:
    return {*statement.members, *(member for begun in statement.others for member in begun.members)}
