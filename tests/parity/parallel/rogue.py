"""What a rogue declares: where it parts from the plain model first, and the pattern of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from everyrank.suites.compare.patterns.fit import PATTERNS

from tests.parity.parallel.naming import kebab
from tests.parity.parallel.subject import Parallel

KINDS = (
    "initialization",
    "forward",
    "loss",
    "activation-gradient",
    "gradient",
    "norm",
    "update",
    "replicas",
)


@dataclass(frozen=True)
class Rogue:
    """A subject with one sabotage."""

    name: str
    subject: type[Parallel]
    source: str
    """The report that it is modelled on, or how the mistake is made."""
    kinds: tuple[str, ...]
    """The kind of tensor that parts first; several where a right tool may name any of them."""
    tensors: tuple[str, ...]
    """Patterns of the plain model's names, of modules or parameters, one of which the first tensor fits."""
    patterns: tuple[str, ...]
    """The pattern; several where the values fit any of them; empty where the list has none."""
    dtype: str = "float64"
    size: int = 2

    @property
    def kind(self) -> str:
        return self.kinds[0]

    @property
    def pattern(self) -> str:
        return self.patterns[0] if self.patterns else ""

    def __post_init__(self) -> None:
        unknown = set(self.kinds) - set(KINDS) | set(self.patterns) - {"", *PATTERNS}
        if unknown or not self.kinds or not self.source:
            raise ValueError(
                f"{self.name}: state a source and kinds and patterns of the lists, not {sorted(unknown)}"
            )
        if self.size not in self.subject.sizes:
            raise ValueError(f"{self.name}: its subject cannot be cut for {self.size} ranks")


_Subject = TypeVar("_Subject", bound=type[Parallel])


class Rogues(dict[str, Rogue]):
    """The rogues of a module, by name. Its method ``add`` is a decorator."""

    def add(
        self,
        source: str,
        kinds: str,
        tensors: str = "*",
        pattern: str = "",
        dtype: str = "float64",
        size: int = 2,
    ) -> Callable[[_Subject], _Subject]:
        """Declare a class to be a rogue. Kinds, tensors and patterns are words with spaces between them."""

        def declare(subject: _Subject) -> _Subject:
            name = kebab(subject.__name__)
            self[name] = Rogue(
                name, subject, source, _words(kinds), _words(tensors), _words(pattern), dtype=dtype, size=size
            )
            return subject

        return declare


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())
