"""The base classes of the drawings of all contracts. Import this only in processes that draw: it needs Hypothesis."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from hypothesis import strategies as st

Draw = Callable[[Any], Any]


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


AnyDrawing = TypeVar("AnyDrawing", bound=Drawing)
Maker = Callable[[], None]


class Actions(Generic[AnyDrawing]):
    """The actions of one draw. A maker adds an action of one kind, or none if it makes no sense at that point."""

    #: The largest number of makers that are drawn.
    MOST = 6

    def __init__(self, drawing: AnyDrawing) -> None:
        self.d = drawing
        self.made: list[Any] = []

    def make(self) -> tuple[Any, ...]:
        """Draw makers and call them in order; return the actions that they have added."""
        makers = self.makers()
        for index in self.indices(len(makers)):
            makers[index]()
        return tuple(self.made)

    def makers(self) -> list[Maker]:
        """Return the makers that can be drawn. A maker that is listed several times is drawn more often."""
        raise NotImplementedError

    def indices(self, count: int) -> Iterable[int]:
        indices: list[int] = self.d.draw(st.lists(st.sampled_from(range(count)), min_size=1, max_size=self.MOST))
        return indices

    def claimed(self, makers: Mapping[str, Sequence[Maker]]) -> list[Maker]:
        """Return the makers whose features the subject claims."""
        return [maker for feature, listed in makers.items() if self.d.has(feature) for maker in listed]


def draws_of(drawing: type[Drawing]) -> Callable[[int, frozenset[str]], Any]:
    """Return the strategy of these draws, a function of world size and features."""

    def make(draw: Draw, size: int, features: frozenset[str]) -> Any:
        return drawing(draw, size, features).make()

    return st.composite(make)
