"""The base class of the drawings of all contracts. Import it only in processes that draw: it needs Hypothesis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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

    def has(self, feature: str) -> bool:
        return feature in self.features

    def sometimes(self, feature: str, often: int = 1) -> bool:
        """Draw whether to use a feature: rarely, and never if the subject does not claim it."""
        return self.has(feature) and self.one_of(*[False] * self.LEFT_OUT, *[True] * often)


def draws_of(drawing: type[Drawing]) -> Callable[[int, frozenset[str]], Any]:
    """Return the strategy of these draws, a function of world size and features."""

    def make(draw: Draw, size: int, features: frozenset[str]) -> Any:
        return drawing(draw, size, features).make()

    return st.composite(make)
