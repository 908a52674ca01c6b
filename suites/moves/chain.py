"""Chains: two flows of state in a row, by one move that looks at a kind of state and then changes another.

Crossings have nearly all flows, but chains are in them by chance. Draws look for those that no crossing has.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from typing import Any

from everyrank.suites.moves.crossing import Crossing, Event
from everyrank.suites.moves.file import stored
from everyrank.suites.moves.flow import START, Flow, all_flows, begun
from everyrank.suites.moves.move import moves_of
from everyrank.suites.moves.player import Player
from everyrank.suites.moves.states import SAVED

#: Two flows: what reads the first one changes what the second one carries on.
Chain = tuple[Flow, Flow]


def chains_of(player: type[Player], scripts: Iterable[Crossing]) -> set[Chain]:
    """Return the chains that are in these scripts."""
    moves = moves_of(player)
    found: set[Chain] = set()
    for script in scripts:
        flowing = begun(player)
        read: list[list[Flow]] = []  # the flows that each event has read
        for event in script.events:
            if not moves[event[0]].apart:
                numbered: Any = *event, len(read)
                flows = flowing.add([numbered])
                read.append([_without_numbers(flow) for flow in flows])
                found |= {
                    (first, second)
                    for flow, second in zip(flows, read[-1], strict=True)
                    for first in (read[flow.changed_by[2]] if flow.changed_by != START else ())  # type: ignore[misc]
                }
    return found


def _without_numbers(flow: Flow) -> Flow:
    return Flow(flow.kind, flow.changed_by[:2], None if flow.load is None else flow.load[:2], flow.read_by)


@cache
def unseen(player: Any) -> list[tuple[Event, ...]]:
    """Return the events of each chain that no crossing has, in their order. Not all of them are possible."""
    seen = chains_of(player, [script for script, _ in stored(player)])
    flows, by_move = all_flows(player), defaultdict(list)
    for flow in flows:
        by_move[flow.changed_by[0]].append(flow)
    saves = [(name, 0) for name, move in moves_of(player).items() if SAVED in move.writes]

    def events(first: Flow, second: Flow) -> tuple[Event, ...]:
        loads = [() if flow.load is None else (*saves[:1], flow.load) for flow in (first, second)]
        changed = () if first.changed_by == START else (first.changed_by,)
        return *changed, *loads[0], second.changed_by, *loads[1], (second.read_by, 0)

    possible = {events(first, second) for first in flows for second in by_move[first.read_by]}
    return sorted(possible - {events(*chain) for chain in seen})
