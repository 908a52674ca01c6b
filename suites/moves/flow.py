"""Flows of state: a move changes a kind, and another looks at it, with no other change between.

A save and a load carry on what was changed before: a rate that is halved, saved and loaded into a fresh trainer flows
into the next step there. Most flows are in the crossings that cover pairs and triples; further ones have the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from everyrank.suites.moves.crossing import Covering, Crossing, Event, State, States
from everyrank.suites.moves.move import ALL, Move, moves_of
from everyrank.suites.moves.player import Player
from everyrank.suites.moves.states import SAVED

#: What has changed all kinds of state before the first event: a state that is saved then is loaded later.
START: Event = ("start", 0)


@dataclass(frozen=True)
class Flow:
    """A kind of state, the event that has changed it, the load that has brought it back, if any, and the reader."""

    kind: str
    changed_by: Event
    load: Event | None
    read_by: str


@dataclass
class Flowing:
    """The kinds of state at one point of a script: who has changed each, and by which load that came back."""

    moves: Mapping[str, Move]
    now: dict[str, tuple[Event, Event | None]] = field(default_factory=dict)
    saved: dict[str, tuple[Event, Event | None]] = field(default_factory=dict)

    def add(self, events: Iterable[Event]) -> set[Flow]:
        """Go on by these events; return the flows that they bring."""
        found = set()
        for event in events:
            move = self.moves[event[0]]
            found |= {Flow(kind, *self.now[kind], move.name) for kind in move.reads_up_to() if kind in self.now}
            if SAVED in move.reads:
                self._load(event, move)
            else:
                self.now |= dict.fromkeys(move.writes, (event, None))
            if SAVED in move.writes:
                self.saved = {kind: self.now[kind] for kind in move.reads_up_to() if kind in self.now}
        return found

    def _load(self, event: Event, move: Move) -> None:
        for kind in move.writes:
            self.now.pop(kind, None)
            if kind in self.saved:
                self.now[kind] = self.saved[kind][0], event

    def copy(self) -> Flowing:
        return Flowing(self.moves, dict(self.now), dict(self.saved))


def flows_of(player: type[Player], scripts: Iterable[Crossing]) -> set[Flow]:
    """Return the flows that are in these scripts."""
    moves = moves_of(player)
    found = (begun(player).add(event for event in each.events if not moves[event[0]].apart) for each in scripts)
    return {flow for flow in set().union(*found) if flow.changed_by != START or flow.load}


def begun(player: type[Player]) -> Flowing:
    """Return the kinds of state before the first event: what is in a state that is saved then."""
    kept = _kept(player) if player.flows_from_start else ()
    return Flowing(moves_of(player), dict.fromkeys(kept, (START, None)))


def _kept(player: type[Player], layer: int = ALL) -> set[str]:
    return {
        kind for move in _shared(player, layer).values() if SAVED in move.writes for kind in move.reads_up_to(layer)
    }


def all_flows(player: type[Player], layer: int = ALL) -> set[Flow]:
    """Return the flows that the moves of a player state, as crossings of a layer have them. Not all are possible."""
    shared, kept = _shared(player, layer), _kept(player, layer)
    events = [(move, (name, kind)) for name, move in shared.items() for kind in range(len(move.kinds_up_to(layer)))]
    loads = [(move, event) for move, event in events if SAVED in move.reads]
    changes = [(kind, event, True) for move, event in events if SAVED not in move.reads for kind in move.writes]
    changes += [(kind, START, False) for kind in kept if player.flows_from_start]
    found = set()
    for kind, event, directly in changes:
        back = [load for loading, load in loads if kind in kept and kind in loading.writes]
        readers = [reader for reader, other in shared.items() if kind in other.reads_up_to(layer)]
        found |= {Flow(kind, event, load, reader) for load in (*[None] * directly, *back) for reader in readers}
    return found


def _shared(player: type[Player], layer: int) -> dict[str, Move]:
    return {name: move for name, move in moves_of(player).items() if move.kinds_up_to(layer) and not move.apart}


def flowing(player: type[Player], scripts: Iterable[Crossing]) -> list[Crossing]:
    """Return a further script for each model that the player has for flows, with flows that these do not have."""
    wanted = all_flows(player, player.flow_layer) - flows_of(player, scripts)
    return _rows(player, player.flows, wanted, player.flow_layer)


def flowing_further(player: type[Player], scripts: Iterable[Crossing], layer: int) -> list[Crossing]:
    """Return the same for the models and the flows of a layer."""
    wanted = all_flows(player, layer) - flows_of(player, scripts)
    if layer in player.layers_alone:
        before = _shared(player, layer - 1)
        old = {(name, kind) for name, move in before.items() for kind in range(len(move.kinds_up_to(layer - 1)))}
        seen = {(kind, name) for name, move in before.items() for kind in move.reads_up_to(layer - 1)}
        # Those without a load are pairs in a row, or nearly.
        wanted = {
            flow
            for flow in wanted
            if flow.load and (not {flow.changed_by, flow.load} <= old or (flow.kind, flow.read_by) not in seen)
        }
    return _rows(player, player.further_flows.get(layer, ()), wanted, layer)


def flowing_again(player: type[Player]) -> list[Crossing]:
    """Return a script for each model that the player has for flows that come again, with flows up to its layer."""
    found: list[Crossing] = []
    for layer, models in player.flows_again.items():
        found += _rows(player, models, all_flows(player, layer), layer)
    return found


def _rows(player: type[Player], models: Iterable[Mapping[str, Any]], wanted: set[Flow], layer: int) -> list[Crossing]:
    found = []
    for traits in models:
        script = Crossing(traits, _Row(player, traits, wanted, layer).events())
        if new := flows_of(player, [script]) & wanted:
            wanted -= new
            found.append(script)
    return found


class _Row:
    """One script while it is made, by the numbers of its events."""

    def __init__(self, player: type[Player], traits: Mapping[str, Any], wanted: Iterable[Flow], layer: int) -> None:
        self.covering = Covering(player, 1, layer)
        self.number_of = {event: number for number, event in enumerate(self.covering.events)}
        self.saves = [event for event in self.covering.events if SAVED in self.covering.moves[event[0]].writes]
        self.wanted = set(wanted)
        self.states = States(self.covering)
        self.state = self.states.state_of(player.outline(player.model_of(traits, self.covering.features)))
        self.flowing = begun(player)
        self.length = player.flow_length
        self.layer = layer
        self.changes_again = layer in player.layers_changed_again
        self.shows = layer in player.layers_alone
        """Whether what shows the effect of a reader follows: twice, since a step looks at what the last one kept."""
        self.found: list[Event] = []

    def events(self) -> tuple[Event, ...]:
        """Return the events, as long as they bring something, and what shows their effect."""
        while len(self.found) < self.length and (best := self._best()):
            self._add(best)
            shows = self.number_of.get((self._shown_by(best), 0))
            if self.shows and shows is not None and shows in self.state.able:
                self._add([shows] * 2)
        shown_by = [self.covering.moves[name].shown_by for name, _ in self.found]
        for name in list(filter(None, shown_by))[-1:]:
            if name != self.found[-1][0]:
                self._add([self.number_of[name, 0]])
        return tuple(self.found)

    def _shown_by(self, numbers: tuple[int, ...]) -> str:
        """Return the move that shows the effect of the last of these events, or of what it has come to read."""
        *before, last = [self.covering.moves[self.covering.events[number][0]] for number in numbers]
        asks = self.layer in last.reads_further and SAVED not in last.writes
        return last.shown_by or next((move.shown_by for move in before if asks and move.shown_by), "")

    def _best(self) -> tuple[int, ...]:
        """Return the events that bring most flows for each of them; one more comes before them if it has to."""
        ends = sorted({pattern[first:] for pattern in self._patterns() for first in range(len(pattern))})
        for before in ((), *((number,) for number in self.state.able)):
            worth = {events: self._worth(events) for events in ((*before, *end) for end in ends)}
            best = max(worth, key=lambda events: (worth[events], -len(events)), default=())
            if worth.get(best):
                return best
        return ()

    def _patterns(self) -> Iterator[tuple[int, ...]]:
        for flow in self.wanted:
            changed = () if flow.changed_by == START else (flow.changed_by,)
            # What has to come before the reader: a context is held before a step takes its gradients from there.
            reader = self.covering.moves[flow.read_by]
            first = ((reader.after, 0),) if reader.after and SAVED not in reader.reads else ()
            again = [self._other(each) for each in changed] if self.changes_again else []
            for back in [()] if flow.load is None else [(save, *again, flow.load) for save in self.saves]:
                for before in {(), first}:
                    read = flow.read_by, reader.kind_reading(flow.kind)
                    yield tuple(self.number_of[event] for event in (*changed, *back, *before, read))

    def _other(self, event: Event) -> Event:
        """Return the same move with other arguments, if it has any: they change the same kinds of state otherwise."""
        name, kind = event
        return name, (kind + 1) % len(self.covering.moves[name].kinds_up_to(self.layer))

    def _worth(self, numbers: tuple[int, ...]) -> float:
        state: State | None = self.state
        for number in numbers:
            if state is None or number not in state.able:
                return 0.0
            state = self.states.after(state, number)
        new = self.flowing.copy().add(self.covering.events[number] for number in numbers) & self.wanted
        return len(new) / len(numbers)

    def _add(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self.state = self.states.after(self.state, number)
            self.found.append(self.covering.events[number])
            self.wanted -= self.flowing.add([self.covering.events[number]])
