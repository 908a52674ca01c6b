"""Cases that were listed and never told: what their ids say of them, and what their neighbours do."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from everyrank.reports.model import CaseLine

#: The kit's id of a case, as pytest puts it into the brackets of a node id.
_CASE = re.compile(r"\[(?P<case>(?P<contract>[^\[\]/]+)/(?P<law>[^\[\]/]+)\[(?P<label>[^\[\]]*)\])")

_STOPPED = "not run: the run ended before its turn (-x, --maxfail, or it was interrupted)"
_KILLED = "not run: the run was killed before it was told"


def untold_cases(listed: Iterable[str], told: Sequence[CaseLine], complete: bool) -> tuple[CaseLine, ...]:
    """A line for each case that has none, in the order of the list."""
    left = Counter(listed)
    left.subtract(case.id for case in told)
    missing = [id for id, times in left.items() for _ in range(times)]
    if not missing:
        return ()
    subjects = _subjects(told)
    optimizers = {case.optimizer for case in told if case.optimizer}
    reason = _STOPPED if complete else _KILLED
    return tuple(_line(id, subjects, optimizers, reason) for id in missing)


def _subjects(told: Iterable[CaseLine]) -> dict[str, str]:
    """The subject of each test function, where it has one only."""
    found: dict[str, set[str]] = {}
    for case in told:
        found.setdefault(case.id.partition("[")[0], set()).add(case.subject)
    return {test: names.pop() for test, names in found.items() if len(names) == 1}


def _line(id: str, subjects: dict[str, str], optimizers: set[str], reason: str) -> CaseLine:
    match = _CASE.search(id)
    if match is None:
        return CaseLine(id=id, outcome="not-run", message=reason)
    first = match["label"].partition("-")[0]
    return CaseLine(
        id=id,
        outcome="not-run",
        subject=subjects.get(id.partition("[")[0], ""),
        contract=match["contract"],
        law=match["law"],
        case=match["case"],
        optimizer=first if first in optimizers else "",
        message=reason,
    )
