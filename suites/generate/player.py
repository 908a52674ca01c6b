"""The base classes of all contracts for carrying a draw out: its objects, and the actions on them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Generic, TypeVar

from everyrank.suites.generate.grammar import Drawn, Rejected


class DrawnObjects:
    """The objects of one draw on this rank: the subject's and the reference's. The constructor makes them."""

    number = 0
    """The number of the current action, counted from 1; 0 before the first."""

    def compare(self) -> None:
        """Raise Deviation if the subject's objects differ from the reference's."""
        raise NotImplementedError


AnyDraw = TypeVar("AnyDraw", bound=Drawn)
Objects = TypeVar("Objects", bound=DrawnObjects)


class Player(Generic[AnyDraw, Objects]):
    """Carries out one draw on this rank: a subclass has a method for each kind of action, ``_step`` for ``Step``."""

    def __init__(self, draw: AnyDraw, objects: Objects) -> None:
        self.draw, self.objects = draw, objects

    def play(self) -> Iterator[None]:
        """Compare the new objects, then carry out each action and compare again; yield after each comparison."""
        self.objects.compare()
        yield
        for number, action in enumerate(self.draw.actions, 1):
            self.objects.number = number
            getattr(self, f"_{type(action).__name__.lower()}")(action)
            self.objects.compare()
            yield


@contextlib.contextmanager
def reference_acts() -> Iterator[None]:
    """Reject the draw if the reference raises: then the draw proves nothing about the subject."""
    try:
        yield
    except Exception as error:
        raise Rejected(str(error)) from error
