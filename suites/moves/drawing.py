"""Draw models and scripts. Import this only in processes that draw: it needs Hypothesis."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from everyrank.suites.moves.chain import unseen
from everyrank.suites.moves.crossing import Event
from everyrank.suites.moves.move import Move, Writing, moves_of
from everyrank.suites.moves.player import Player
from everyrank.suites.moves.script import Script
from hypothesis import strategies as st

Draw = Callable[[Any], Any]

#: What the name of a parameter may begin with: nothing, or a submodule.
PREFIXES = ("", "inner.", "inner.deep.", "other.")


class Drawing:
    """One draw while it is made, for a world of this size and a subject that claims these features."""

    #: How many times a feature drawn by ``sometimes`` is left out for each time that it is drawn.
    LEFT_OUT = 3

    def __init__(self, draw: Draw, size: int, features: frozenset[str]) -> None:
        self.draw, self.size, self.features = draw, size, features

    def make(self) -> Any:
        """Make the whole draw."""
        raise NotImplementedError

    def one_of(self, *values: Any) -> Any:
        return self.draw(st.sampled_from(values))

    def below(self, count: int) -> int:
        """Draw a number from 0 up to, but not including, ``count``."""
        return int(self.draw(st.integers(0, count - 1)))

    def some(self, values: Iterable[Any]) -> tuple[Any, ...]:
        """Draw some of these values, at least one, in any order."""
        shuffled = self.draw(st.permutations(list(values)))
        return tuple(shuffled[: self.draw(st.integers(1, len(shuffled)))])

    def chance(self, times: int) -> bool:
        """Draw True once in this many times."""
        return bool(self.one_of(*[False] * (times - 1), True))

    def has(self, feature: str) -> bool:
        return feature in self.features

    def sometimes(self, feature: str, often: int = 1) -> bool:
        """Draw whether to use a feature: rarely, and never if the subject does not claim it."""
        return self.has(feature) and bool(self.one_of(*[False] * self.LEFT_OUT, *[True] * often))

    def name_of(self, number: int) -> str:
        """Draw the name of a parameter: of the whole model, or of a submodule."""
        return str(self.one_of("", *PREFIXES)) + f"p{number}"

    def second_name_of(self, number: int) -> str:
        """Draw a second name of a parameter, or none."""
        return f"{self.one_of('', 'other.')}p{number}_again" if self.sometimes("tied parameters") else ""


#: The largest number of moves that are drawn, without those that come before and after them.
_MOST = 8


class ScriptDrawing(Drawing):
    """A script while it is drawn. It makes sense at each point, also while it shrinks."""

    player: type[Player]

    def make(self) -> Script:
        model = self.player.draw_model(self)
        self.writing = Writing(moves_of(self.player), self.features, self.player.outline(model))
        names = [name for name, move in self.writing.moves.items() for _ in range(move.often)]
        for index in self._indices(len(names)):
            self._add(names[index])
        self._add_chain()
        if not self.writing.calls:
            self._add(names[0])
        return Script(model, tuple(self.writing.calls))

    def _indices(self, count: int) -> Iterable[int]:
        found: list[int] = self.draw(st.lists(st.sampled_from(range(count)), min_size=1, max_size=_MOST))
        return found

    def _add_chain(self) -> None:
        """Add, or do not add, a chain of moves that no crossing has, as far as it makes sense here."""
        player: Any = self.player
        chains = unseen(player)
        chain: Sequence[Event] = self.one_of(*chains) if chains and self.chance(2) else ()
        for name, kind in chain:
            move = self.writing.moves[name]
            if (arguments := move.arguments(kind, self.writing.outline)) is not None:
                if move.after and not self.writing.allows(name, arguments):
                    self._add_alone(move.after)
                self.writing.try_to_add(name, arguments)

    def _add(self, name: str) -> None:
        """Add a move, with what must come before it, and with what shows its effect."""
        move = self.writing.moves[name]
        if move.after and (not self.writing.allows(name, {}) or self.chance(2)):
            self._add_alone(move.after)
        if move.after and move.shown_by and self.chance(2):
            self._add_alone(move.shown_by)
        if self._add_alone(name) and move.shown_by and self.one_of(True, True, False):
            self._add_alone(move.shown_by)

    def _add_alone(self, name: str) -> bool:
        """Add a move with drawn arguments, without those that make no sense here."""
        move = self.writing.moves[name]
        drawn = {argument: self._value(move, argument) for argument in move.drawn}
        arguments = {argument: drawn[argument] for argument in move.required}
        if not self.writing.allows(name, arguments):
            return False
        for argument, value in drawn.items():
            if value != move.defaults[argument] and self.writing.allows(name, {**arguments, argument: value}):
                arguments[argument] = value
        return self.writing.try_to_add(name, arguments)

    def _value(self, move: Move, argument: str) -> Any:
        values = move.drawn[argument]
        able = values(self.writing.outline) if callable(values) else values
        return self.one_of(*able) if able else move.defaults[argument]


def scripts_of(player: type[Player]) -> Callable[[int, frozenset[str]], Any]:
    """Return the strategy of a player's scripts, a function of world size and features."""
    drawing = type("Drawing", (ScriptDrawing,), {"player": player})

    def make(draw: Draw, size: int, features: frozenset[str]) -> Script:
        found: Script = drawing(draw, size, features).make()
        return found

    return st.composite(make)
