"""What the drawings of all contracts share. Only for processes that draw: it needs Hypothesis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

Draw = Callable[[Any], Any]


class Drawing:
    """One draw while it is made, for a world of this size and a subject that claims these features."""

    #: What is drawn ``sometimes`` is left out so many times for each time that it is drawn.
    LEFT_OUT = 3

    def __init__(self, draw: Draw, size: int, features: frozenset[str]) -> None:
        self.draw, self.size, self.features = draw, size, features

    def make(self) -> Any:
        """The whole draw."""
        raise NotImplementedError

    def one_of(self, *values: Any) -> Any:
        return self.draw(st.sampled_from(values))

    def has(self, feature: str) -> bool:
        return feature in self.features

    def sometimes(self, feature: str, often: int = 1) -> bool:
        """Whether to draw what belongs to a feature: rarely, and never without the feature."""
        return self.has(feature) and self.one_of(*[False] * self.LEFT_OUT, *[True] * often)


def draws_of(drawing: type[Drawing]) -> Callable[[int, frozenset[str]], Any]:
    """The strategy of these draws, by world size and features."""

    def one(draw: Draw, size: int, features: frozenset[str]) -> Any:
        return drawing(draw, size, features).make()

    return st.composite(one)
