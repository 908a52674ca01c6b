"""Kinds of state: which moves of a contract change and read each of them, and what none does.

What one move changes and another reads is a way in which the first can spoil the second. A kind that no move changes
before a save, or that none reads after, is a hole: what a subject does wrong with it stays unseen. A player gives a
reason for each of its holes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from everyrank.suites.moves.move import Move, moves_of

#: The kinds of state that a training may have. A contract has more if its moves name more.
KINDS = (
    "parameter",
    "gradient",
    "buffer",
    "optimizer state",
    "step count",
    "option",
    "group",
    "frozen",
    "scheduler",
    "generator",
    "hook",
    "saved state",
)

SAVED = "saved state"


def moves_on_state(player: type) -> list[Move]:
    """Return the moves of a player, without those that have objects of their own."""
    return [move for move in moves_of(player).values() if not move.apart]


def kinds_of(player: type) -> list[str]:
    """Return the kinds of state of a contract: those of all, and then its own."""
    named = (kind for move in moves_on_state(player) for kind in (*move.writes, *move.reads_up_to()))
    return list(dict.fromkeys([*KINDS, *named]))


def changing(player: type, kind: str) -> list[str]:
    """Return the moves that change a kind of state."""
    return [move.name for move in moves_on_state(player) if kind in move.writes]


def reading(player: type, kind: str) -> list[str]:
    """Return the moves that read a kind of state."""
    return [move.name for move in moves_on_state(player) if kind in move.reads_up_to()]


def holes(player: type) -> dict[str, str]:
    """Return for each kind of state that has a hole what no move does. A load changes what has been saved before."""
    loads = {move.name for move in moves_on_state(player) if SAVED in move.reads}
    found = {}
    for kind in kinds_of(player):
        changed, read = set(changing(player, kind)) - loads, reading(player, kind)
        if not changed and not read:
            found[kind] = "no move changes or reads it"
        elif not changed:
            found[kind] = "no move changes it before a save"
        elif not read:
            found[kind] = "no move reads it after"
    return found


def table(player: Any) -> Iterator[str]:
    """Yield the lines of the table of kinds by moves, and of its holes with their reasons."""
    moves = [move.name for move in moves_on_state(player)]
    width = max(map(len, kinds_of(player)))
    yield f"{'':{width}}  {'  '.join(moves)}"
    for kind in kinds_of(player):
        changed, read = changing(player, kind), reading(player, kind)
        cells = [f"{'w' if name in changed else ''}{'r' if name in read else ''}" or "." for name in moves]
        line = "  ".join(f"{cell:{len(name)}}" for cell, name in zip(cells, moves, strict=True))
        yield f"{kind:{width}}  {line}".rstrip()
    yield "w: the move may change it; r: what the move does depends on it, rightly or by a subject's mistake"
    for kind, text in holes(player).items():
        yield f"hole: {kind}: {text}: {player.holes.get(kind, 'without a reason')}"
