"""The order of cases: what two laws judge is trained once if their cases run one after the other."""

from __future__ import annotations

from typing import Any

import pytest
from everyrank.suites.arena.first_step import longer
from everyrank.suites.collect.usability import case_of
from everyrank.suites.engine.case import Case


def pair(items: list[pytest.Item]) -> None:
    """Move each case about a first step behind the case that trains for longer, in whatever order they are."""
    cases = {item: case for item in items if (case := case_of(item)) is not None}
    followers: dict[Any, list[pytest.Item]] = {}
    for item, case in cases.items():
        if case.law.check in longer:
            followers.setdefault(_training(item, case, longer[case.law.check]), []).append(item)
    behind: dict[pytest.Item, list[pytest.Item]] = {}
    for item, case in cases.items():
        if mine := followers.pop(_training(item, case, case.law.id), None):
            behind[item] = mine
    moved = {follower for mine in behind.values() for follower in mine}
    items[:] = [each for item in items if item not in moved for each in (item, *behind.get(item, ()))]


def _training(item: pytest.Item, case: Case, law: str) -> Any:
    """Return what two cases have in common if one trains what the other one begins with."""
    return item.parent, getattr(item, "originalname", ""), case.subject_key, law, case.point.label, case.point.size
