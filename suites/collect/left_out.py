"""What ``--law``, ``--optimizer`` and ``--profile`` select, and the numbers of cases that they leave out of a run.

These numbers are plain data: the controller of pytest-xdist collects nothing and gets them from its workers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from everyrank.model.counts import count

if TYPE_CHECKING:
    from everyrank.suites.engine.case import Case
    from everyrank.suites.engine.subject import Subject


@dataclass(frozen=True)
class FilterReason:
    """Why cases were left out: the filter as it was given, and a description of the cases that do not fit it."""

    filter: str
    cases: str


@dataclass(frozen=True)
class Selection:
    """The cases of one subject that the filters selected, and the number of those that they left out."""

    subject: Subject
    cases: tuple[Case, ...]
    left_out: Mapping[FilterReason, int]


@dataclass(frozen=True)
class LeftOut:
    """What the filters left out of a whole run."""

    counts: Mapping[FilterReason, int] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    """The subjects of which no case is left."""

    def as_data(self) -> dict[str, Any]:
        counts = [
            {"filter": reason.filter, "reason": reason.cases, "cases": count} for reason, count in self.counts.items()
        ]
        return {"counts": counts, "without": list(self.without)}

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> LeftOut:
        counts = {FilterReason(part["filter"], part["reason"]): part["cases"] for part in data["counts"]}
        return LeftOut(counts, tuple(data["without"]))

    def by_filter(self) -> list[str]:
        """Return one line for each filter."""
        parts: dict[str, list[str]] = {}
        largest_first = sorted(self.counts.items(), key=lambda item: (item[0].filter, -item[1]))
        for reason, number in largest_first:
            parts.setdefault(reason.filter, []).append(f"{count(number, 'case')} {reason.cases}")
        return [f"{filter} leaves out {' and '.join(texts)}" for filter, texts in parts.items()]

    def lines(self) -> list[str]:
        """Return one line for each filter, and one for the subjects of which no case is left."""
        return [*self.by_filter(), *([f"no case is left of {', '.join(self.without)}"] if self.without else [])]


def left_out(selections: Iterable[Selection]) -> LeftOut:
    """Return what the filters left out of all subjects of a run."""
    counts: Counter[FilterReason] = Counter()
    chosen: Counter[tuple[str, str]] = Counter()  # another contract's subject may have the same name
    for selection in selections:
        counts.update(selection.left_out)
        chosen[selection.subject.contract_name, selection.subject.name] += len(selection.cases)
    return LeftOut(counts, tuple(name for (_, name), cases in chosen.items() if not cases))
