"""In a sample of the matrix a law's first kill of a rogue is enough: no other case makes the pair more certain."""

from __future__ import annotations

from typing import Any

import pytest
from everyrank.suites.collect.usability import case_of, outcome_of

#: Why a case was not tried.
ENOUGH = "a law has killed its rogue by another case; --others=all tries all"

#: A contract, a rogue or a control of it, and one of its laws.
Pair = tuple[str, str, str]


class FirstKill:
    """Skips what a law has left for a rogue that it has killed. A pytest plugin of each controller."""

    def __init__(self) -> None:
        self._left: dict[Pair, list[pytest.Item]] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            if pair := _pair(item):
                self._left.setdefault(pair, []).append(item)

    @pytest.hookimpl(trylast=True)
    def pytest_everyrank_result(self, item: pytest.Item, reports: list[pytest.TestReport], **_: Any) -> None:
        if "fail" in map(outcome_of, reports) and (pair := _pair(item)):
            for other in self._left.pop(pair, ()):
                other.add_marker(pytest.mark.skip(reason=ENOUGH), append=False)


def _pair(item: pytest.Item) -> Pair | None:
    case = case_of(item)
    return (*case.subject_key, case.law.id) if case is not None else None
