"""The first step of a longer training, which the law about one step judges too.

Both laws would train alike, so a training is done once if both cases run in one process, the longer one first (see
``everyrank.suites.collect.order``). Only a training in which no law found anything is kept: after any other, and in
another process, the law about one step trains on its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from everyrank.suites.compare.comparison import Comparison
from everyrank.suites.engine.contract import Point
from everyrank.suites.engine.subject import Subject

Check = TypeVar("Check", bound=Callable[..., Any])

#: The law about a longer training, by the function that checks its first step.
longer: dict[Callable[..., Any], str] = {}

#: How many trainings are kept. The next case of a process usually takes the last one.
_MOST = 8

_kept: dict[tuple[str, str, str, int], tuple[Subject, Comparison]] = {}


def first_step_of(law: str) -> Callable[[Check], Check]:
    """Declare that the decorated check is about the first step of what this law trains at the same point."""

    def declare(check: Check) -> Check:
        longer[check] = law
        return check

    return declare


def keep(subject: Subject, point: Point, comparison: Comparison) -> None:
    """Keep the first step of a longer training, after its verdict."""
    _kept[_key(subject, point)] = subject, comparison
    while len(_kept) > _MOST:
        del _kept[next(iter(_kept))]


def judged(subject: Subject, point: Point) -> bool:
    """Judge the first step that this process has kept; return whether there was one. It is used once."""
    trained, comparison = _kept.pop(_key(subject, point), (None, None))
    if comparison is None or trained is not subject:
        return False
    comparison.repeat_first()
    return True


def _key(subject: Subject, point: Point) -> tuple[str, str, str, int]:
    return subject.contract_name, subject.name, point.label, point.size
