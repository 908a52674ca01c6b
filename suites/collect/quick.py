"""Choose the cases of the quick profile.

It has every law at the points that are enough to kill the law's rogues, and every optimizer at least once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from everyrank.suites.engine.case import Case
from everyrank.suites.generate.options import GENERATE


def _first_of_each(cases: Sequence[Case], covered: set[str], key: Callable[[Case], str]) -> list[Case]:
    """Return the first case of each key that is not covered; if possible one that is expected to pass."""
    first: dict[str, Case] = {}
    for case in sorted(cases, key=_is_weak):
        first.setdefault(key(case), case)
    return [case for name, case in first.items() if name not in covered]


def _is_weak(case: Case) -> bool:
    """Return whether the case needs no run, or is known to fail."""
    return bool(case.point.not_applicable or case.entry or case.lack)


def quick(cases: Sequence[Case]) -> set[str]:
    """Return the ids of the cases of one subject that are in the quick profile."""
    chosen = [case for case in cases if case.point.core or case.law.id == GENERATE]
    chosen += _first_of_each(cases, {case.law.id for case in chosen}, lambda case: case.law.id)
    # The laws come in the order of their registration: the first that names an optimizer trains with it.
    chosen += _first_of_each(
        cases, {case.point.optimizer for case in chosen} | {""}, lambda case: case.point.optimizer
    )
    return {case.id for case in chosen}
