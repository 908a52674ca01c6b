"""A fault: a deviation that follows from no other."""

from __future__ import annotations

from dataclasses import dataclass

from everyrank.parity.judging.pattern import Pattern
from everyrank.parity.judging.steps import Deviation


@dataclass(frozen=True)
class Fault:
    """A deviation that follows from no other."""

    deviation: Deviation
    pattern: Pattern | None
    same: tuple[str, ...] = ()
    """Other tensors of its kind to which the same has happened."""
