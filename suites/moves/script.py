"""A script: a model and a list of moves with their arguments. It travels as JSON, and is printed as Python."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from everyrank.suites.moves.data import code


class Model(Protocol):
    """What a contract's scripts are about: a frozen dataclass of plain data."""

    @property
    def size(self) -> int:
        """The world size."""


@dataclass(frozen=True)
class Call:
    """One move with its arguments, those without a default alone."""

    move: str
    arguments: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        return f"{self.move}({', '.join(f'{name}={code(value)}' for name, value in self.arguments)})"


def call(name: str, /, **arguments: Any) -> Call:
    """Return a move with its arguments."""
    return Call(name, tuple(arguments.items()))


@dataclass(frozen=True)
class Script:
    """A model and what is done with it."""

    model: Any
    moves: tuple[Call, ...]

    @property
    def size(self) -> int:
        found: Model = self.model
        return found.size
