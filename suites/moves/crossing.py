"""Crossings: few scripts in which each pair of moves occurs in a row, and each triple in its order.

This is a sequence covering array with constraints, made greedily: at each point of a script the move is chosen that
brings most of what no script has had yet, among those that make sense there. What a model is like is crossed with the
moves, and with what else it is like, pairwise. All is deterministic, and made for a subject that claims everything:
for another one, the same scripts lack what it lacks, and what is left is still covered.
"""

from __future__ import annotations

import copy
import itertools
import math
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from everyrank.suites.moves.move import ALL, Writing, moves_of
from everyrank.suites.moves.player import Player
from everyrank.suites.moves.script import Script

#: A move by its name, and the number of a kind of its arguments.
Event = tuple[str, int]

#: How many moves a script has, without the last ones, which show what the others have done.
LENGTH = 18

#: How many scripts in a row may bring nothing new before the rest counts as impossible.
_PATIENCE = 12

#: The largest number of scripts that a covering adds: with it, all pairs are there, and nearly all triples.
_MOST = 96

#: How many scripts a layer of further crossings has at the most, if the player does not say.
_FURTHER = 12

#: What a pair in a row is worth beside a triple, and a move on a model of a kind that it has not met.
_PAIR, _TRAIT = 60, 8


def text_of(events: Iterable[Event]) -> str:
    """Write events on a line: the name of each move, with the number of the kind of its arguments."""
    return " ".join(f"{name}.{kind}" for name, kind in events)


def events_in(text: str) -> tuple[Event, ...]:
    """Read the events of such a line."""
    words = (word.split(".") for word in text.split())
    return tuple((name, int(kind)) for name, kind in words)


@dataclass(frozen=True)
class Crossing:
    """A script for a subject that claims everything: what the model is like, and the events."""

    traits: Mapping[str, Any]
    events: tuple[Event, ...]

    def script(self, player: type[Player], features: frozenset[str]) -> Script:
        """Return the script for a subject with these features."""
        return self.fitted(player, features)[0]

    def fitted(self, player: type[Player], features: frozenset[str]) -> tuple[Script, tuple[Event, ...]]:
        """Return the script for a subject with these features, and the events that are left of it."""
        model = player.model_of(self.traits, features)
        writing = Writing(moves_of(player), features, player.outline(model))
        left = []
        turns = Counter(dict.fromkeys(writing.moves, zlib.crc32(repr(self.traits).encode())))
        for name, kind in self.events:
            move, outline = writing.moves[name], writing.outline
            arguments = move.arguments(kind, outline)
            if arguments is None:
                continue
            turn, second = divmod(turns[name], 2)
            turns[name] += 1
            more = move.with_more(arguments, turn, outline) if second else ()
            if any(writing.try_to_add(name, each) for each in (*more, arguments)):
                left.append((name, kind))
        return Script(model, tuple(writing.calls)), tuple(left)


@dataclass
class Strength:
    """What a covering has: how many pairs in a row and tuples in their order, of how many events."""

    events: int
    width: int
    pairs: int = 0
    tuples: int = 0
    scripts: int = 0
    moves: int = 0


def values_of(traits: Mapping[str, Any]) -> frozenset[str]:
    """Return the values of traits as texts; those of traits that differ by a number alone are values of one."""
    return frozenset(f"{name.rstrip('0123456789')}={value}" for name, value in traits.items())


class Covering:
    """What is covered so far, and the scripts that cover it."""

    def __init__(self, player: type[Player], width: int, layer: int = ALL) -> None:
        self.player, self.width = player, width
        self.moves = moves_of(player)
        self.traits = dict(player.traits)
        for more in player.further[:layer]:
            self.traits |= more
        self.features = player.features_up_to(layer)
        every = [(name, kind) for name, move in self.moves.items() for kind in range(len(move.kinds_up_to(layer)))]
        self.events: list[Event] = [event for event in every if not self.moves[event[0]].apart]
        self.apart: list[Event] = [event for event in every if self.moves[event[0]].apart]
        self.scripts: list[Crossing] = []
        count = len(self.events)
        self.pairs = [0] * count
        """For each event those that have followed it in a row, as bits."""
        self.tuples = [0] * count
        """For each event the tuples that have come before it, in their order, as bits."""
        self.met: dict[Event, set[str]] = {event: set() for event in every}
        self.together: set[frozenset[str]] = set()
        self.asked: set[frozenset[str]] = set()
        self.used: Counter[str] = Counter()

    def strength(self) -> Strength:
        return Strength(
            len(self.events),
            self.width,
            sum(bits.bit_count() for bits in self.pairs),
            sum(bits.bit_count() for bits in self.tuples),
            len(self.scripts),
            sum(len(script.events) for script in self.scripts),
        )

    def make(self, most: int) -> None:
        """Add scripts until nothing new can be covered."""
        in_vain = 0
        while in_vain < _PATIENCE and len(self.scripts) < most:
            before = self._covered()
            traits = self.next_traits(in_vain)
            script = Crossing(traits, self._events(traits))
            self.together |= _pairs(values_of(traits))
            if self._covered() > before:
                self.scripts.append(script)
                in_vain = 0
            else:
                in_vain += 1

    def _covered(self) -> int:
        found = self.strength()
        return found.pairs + found.tuples + len(self.together) + sum(map(len, self.met.values()))

    # --- what a model is like ----------------------------------------------------------------------------

    def next_traits(self, further: int) -> dict[str, Any]:
        """Return traits that bring most pairs of values that have not been together; ``further`` ones if in vain."""
        turn = len(self.scripts) + further
        chosen: dict[str, Any] = {}
        for name, values in self.traits.items():
            turned = [values[(number + turn) % len(values)] for number in range(len(values))]
            worth = [self._new({**chosen, name: value}) for value in turned]
            chosen[name] = turned[worth.index(max(worth))]
        # What excludes each other is asked for once: it never comes together.
        self.asked |= _pairs(values_of(chosen))
        self.used.update(values_of(chosen))
        return self.player.settled(chosen)

    def _new(self, traits: Mapping[str, Any]) -> float:
        """Return how many new pairs values make, and then what they have not met; those that were rare come first."""
        found = values_of(traits)
        new = len(_pairs(found) - self.together - self.asked)
        unmet = math.fsum(1 / (1 + self.used[value]) ** 2 for seen in self.met.values() for value in found - seen)
        twice = len(traits) - len(found)
        return new + unmet / 1000 - sum(self.used[value] for value in found) / 1e6 - twice / 10

    def able(self, events: Iterable[Event], outline: Any) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the number and the arguments of each event that makes sense after what the outline says."""
        for number, (name, kind) in enumerate(events):
            arguments = self.moves[name].arguments(kind, outline)
            if arguments is not None and self.moves[name].allowed(outline, arguments, self.features):
                yield number, arguments

    # --- what is done with it ----------------------------------------------------------------------------

    def _events(self, traits: Mapping[str, Any]) -> tuple[Event, ...]:
        line = _Line(self, traits)
        while len(line.found) < LENGTH and line.add_best():
            pass
        line.close()
        return tuple(line.found)

    def note(self, script: Crossing) -> None:
        """Count what a script covers."""
        self.scripts.append(script)
        values = values_of(script.traits)
        self.together |= _pairs(values)
        self.used.update(values)
        number_of = {event: number for number, event in enumerate(self.events)}
        numbers = [number_of[event] for event in script.events if event in number_of]
        for first, second in itertools.pairwise(numbers):
            self.pairs[first] |= 1 << second
        prefix = _Prefix(len(self.events), self.width - 1)
        for number in numbers:
            self.tuples[number] |= prefix.bits
            prefix.add(number)
        for event in script.events:
            self.met.setdefault(event, set()).update(values)

    def look_for(self, layer: int) -> None:
        """Count as covered all that has no event of this layer, whatever the model is like."""
        known = {name: len(move.kinds_up_to(layer - 1)) for name, move in self.moves.items()}
        old = [number for number, (name, kind) in enumerate(self.events) if kind < known[name]]
        prefixes = _Prefix(len(self.events), self.width - 1)
        for number in old * (self.width - 1):
            prefixes.add(number)
        for number in old:
            self.pairs[number] |= sum(1 << other for other in old)
            self.tuples[number] |= prefixes.bits
        values = {value for name, each in self.traits.items() for other in each for value in values_of({name: other})}
        for event in [*(self.events[number] for number in old), *self.apart]:
            self.met[event] |= values
        self.together |= _pairs(values)


def _pairs(values: Iterable[str]) -> set[frozenset[str]]:
    return {frozenset(pair) for pair in itertools.combinations(sorted(values), 2)}


class _Prefix:
    """The tuples of events that a sequence has in their order, as bits: a number with a digit for each event."""

    def __init__(self, count: int, width: int) -> None:
        self.count = count
        self.levels = [1] + [0] * width
        """For each width the tuples of it."""

    @property
    def bits(self) -> int:
        return self.levels[-1]

    def add(self, number: int) -> None:
        for width in range(len(self.levels) - 1, 0, -1):
            self.levels[width] |= self._ending(width, number)

    def _ending(self, width: int, number: int) -> int:
        """Return the tuples of this width that end with the event: its number is the leading digit."""
        return int(self.levels[width - 1] << number * self.count ** (width - 1))


class State:
    """What makes sense at one point of a script, and where each event leads from there."""

    def __init__(self, able: Mapping[int, Mapping[str, Any]], outline: Any) -> None:
        self.able, self.outline = able, outline
        self.bits = sum(1 << number for number in able)
        self.after: dict[int, State] = {}


class States:
    """The points at which a script on one model may be: few, since most moves make sense at most of them."""

    def __init__(self, covering: Covering) -> None:
        self.covering = covering
        self._known: dict[str, State] = {}

    def state_of(self, outline: Any) -> State:
        """Return the state of an outline."""
        key = repr(outline)
        if key not in self._known:
            self._known[key] = State(dict(self.covering.able(self.covering.events, outline)), _copied(outline))
        return self._known[key]

    def after(self, state: State, number: int) -> State:
        """Return the state after an event."""
        if number not in state.after:
            outline = _copied(state.outline)
            name, _ = self.covering.events[number]
            self.covering.moves[name].then(outline, **state.able[number])
            state.after[number] = self.state_of(outline)
        return state.after[number]


def _copied(outline: Any) -> Any:
    """Return a copy of an outline with the same model: no move changes it, and to copy it would take longest."""
    copied = copy.copy(outline)
    for name, value in vars(outline).items():
        if type(value).__hash__ is None or isinstance(value, tuple):  # it, or what it holds, may be changed in place
            setattr(copied, name, copy.deepcopy(value))
    return copied


class _Line:
    """One sequence of events while it is made."""

    def __init__(self, covering: Covering, traits: Mapping[str, Any]) -> None:
        self.covering = covering
        self.values = values_of(traits)
        model = covering.player.model_of(traits, covering.features)
        self.states = States(covering)
        self.writing = Writing(covering.moves, covering.features, covering.player.outline(model))
        self.state = self.states.state_of(self.writing.outline)
        self.prefix = _Prefix(len(covering.events), covering.width - 1)
        self.last: int | None = None
        self.unmet: list[int] = []
        """How many of the model's traits each event has not met."""
        self.unmet_bits = 0
        """The events that have not met all of them, as bits."""
        self.found: list[Event] = []

    def add_best(self) -> bool:
        """Add the event that brings most, now and soon; return whether one makes sense."""
        self.unmet = [len(self.values - self.covering.met[event]) for event in self.covering.events]
        self.unmet_bits = sum(1 << number for number, count in enumerate(self.unmet) if count)
        worth = {number: self._worth(number) for number in self.state.able}
        turn, count = len(self.covering.scripts), len(self.covering.events)
        had = Counter(self.found)
        best = min(
            worth,
            key=lambda number: (-worth[number], had[self.covering.events[number]], (number - turn) % count),
            default=None,
        )
        if best is None:
            return False
        self._add(self.covering.events[best], self.state.able[best])
        self._cover(best)
        return True

    def _worth(self, number: int) -> float:
        """Return what an event brings, and what the next two may bring then."""
        covering = self.covering
        new = (self.prefix.bits & ~covering.tuples[number]).bit_count()
        after = self.states.after(self.state, number)
        pair = self.last is not None and not covering.pairs[self.last] >> number & 1
        return pair * _PAIR + new + _TRAIT * self.unmet[number] + self._ahead(after, covering.pairs[number])

    def _ahead(self, state: State, followed: int) -> float:
        """Return what the best of the events may bring that make sense now, and what may follow it."""
        best, pairs, unmet, unmet_bits = -_PAIR * 2.0, self.covering.pairs, self.unmet, self.unmet_bits
        for then in state.able:
            further = self.states.after(state, then).bits
            now = (not followed >> then & 1) * _PAIR + unmet[then] * _TRAIT
            soon = bool(further & ~pairs[then]) * _PAIR + bool(further & unmet_bits) * _TRAIT
            best = max(best, now / 2 + soon / 4)
        return best

    def _cover(self, number: int) -> None:
        """Note what the event brings, so that the next one brings something else."""
        if self.last is not None:
            self.covering.pairs[self.last] |= 1 << number
        self.covering.tuples[number] |= self.prefix.bits
        self.prefix.add(number)
        self.last = number
        self.state = self.states.after(self.state, number)

    def _add(self, event: Event, arguments: Mapping[str, Any]) -> None:
        self.writing.add(event[0], arguments)
        self.found.append(event)
        self.covering.met[event] |= self.values

    def close(self) -> None:
        """Add the move that shows the last one's effect, and one that has objects of its own."""
        shown_by = self.writing.moves[self.found[-1][0]].shown_by if self.found else ""
        if shown_by and self.writing.allows(shown_by, {}):
            self._add((shown_by, 0), {})
        apart = self.covering.apart
        able = dict(self.covering.able(apart, self.writing.outline))
        unmet = {number: len(self.values - self.covering.met[apart[number]]) for number in able}
        best = min(unmet, key=lambda number: (-unmet[number], number), default=None)
        if best is not None and unmet[best]:
            self._add(apart[best], able[best])


@cache
def crossings(player: Any, width: int = 3) -> Covering:
    """Return the scripts that cover each pair in a row and each tuple of this width, after those of less width."""
    covering = Covering(player, width, 0)
    if width > 3:
        for script in crossings(player, width - 1).scripts:
            covering.note(script)
    covering.make(len(covering.scripts) + _MOST)
    return covering


def further(player: type[Player], scripts: Iterable[Crossing], layer: int) -> list[Crossing]:
    """Return the scripts of a layer: they cover most of what it has and these scripts have not."""
    covering = Covering(player, 3, layer)
    for script in scripts:
        covering.note(script)
    if layer in player.layers_alone:
        covering.look_for(layer)
    before = len(covering.scripts)
    covering.make(before + player.further_scripts.get(layer, _FURTHER))
    return covering.scripts[before:]
