"""Make lines for cases that the header lists and that have no line, from their ids and the lines of other cases."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from everyrank.reports.runfile.model import CaseLine

#: The kit's id of a case, as pytest puts it into the brackets of a node id.
_CASE = re.compile(r"\[(?P<case>(?P<contract>[^\[\]/]+)/(?P<law>[^\[\]/]+)\[(?P<label>[^\[\]]*)\])")

_STOPPED = "not run: the run ended before its turn (-x, --maxfail, or it was interrupted)"
_KILLED = "not run: the run was killed before it ended"


def not_run_cases(listed: Iterable[str], reported: Sequence[CaseLine], complete: bool) -> tuple[CaseLine, ...]:
    """Return a line for each case that has none, in the order of the list."""
    lines_left = Counter(listed)
    lines_left.subtract(case.id for case in reported)
    missing = [id for id, times in lines_left.items() for _ in range(times)]
    if not missing:
        return ()
    subjects = _subjects(reported)
    optimizers = {case.optimizer for case in reported if case.optimizer}
    reason = _STOPPED if complete else _KILLED
    return tuple(_line(id, subjects, optimizers, reason) for id in missing)


def _subjects(reported: Iterable[CaseLine]) -> dict[str, str]:
    """Return the subject of each test function that has exactly one subject."""
    subjects: dict[str, set[str]] = {}
    for case in reported:
        subjects.setdefault(case.id.partition("[")[0], set()).add(case.subject)
    return {test: names.pop() for test, names in subjects.items() if len(names) == 1}


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
