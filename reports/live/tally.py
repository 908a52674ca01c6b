"""Count a run's lines, and keep the ten worst, slowest and least exact cases for the summary."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from everyrank.model.outcome import ENDINGS, RED, Ending
from everyrank.reports.runfile.model import CaseLine

#: How many of the worst, the slowest and the least exact cases are kept.
MOST = 10
#: Outcomes whose errors are not shown: a ledger lists them, or the law does not apply.
_WRITTEN_UP: frozenset[Ending] = frozenset(("known", "unsupported", "not-applicable"))


@dataclass
class Tally:
    """The counts and the records of a run. They keep of each line only the text that is printed."""

    outcomes: Counter[Ending] = field(default_factory=Counter)
    rows: dict[str, Counter[Ending]] = field(default_factory=lambda: defaultdict(Counter))
    laws: dict[tuple[str, str], Counter[Ending]] = field(default_factory=lambda: defaultdict(Counter))
    subjects: set[str] = field(default_factory=set)
    documented: int = 0
    """How many of the known cases are limits that the library documents."""
    known: dict[tuple[str, str], tuple[int, str]] = field(default_factory=dict)
    """By subject and the ledger's note: how many cases, and what the first of them deviated by."""
    not_kept: dict[str, tuple[int, str]] = field(default_factory=dict)  # by reason: how many tests, and the first
    _worst: list[tuple[int, int, str, str]] = field(default_factory=list)
    _slowest: list[tuple[float, int, str]] = field(default_factory=list)
    _errors: list[tuple[float, float, int, str]] = field(default_factory=list)

    def add(self, case: CaseLine) -> None:
        count = self.total
        self.outcomes[case.outcome] += 1
        # A test of no subject is counted with its file.
        self.rows[case.subject or case.id.partition("::")[0]][case.outcome] += 1
        if case.subject:
            self.subjects.add(case.subject)
            self.laws[case.subject, case.law][case.outcome] += 1
        if case.outcome == "known" and case.ledger is not None and case.ledger.kind == "documented":
            self.documented += 1
        if case.outcome == "known" and case.ledger is not None and case.deviations:
            count_so_far, first = self.known.get((case.subject, case.ledger.note), (0, ""))
            first = first or f"{case.case}: {case.deviations[0].text}"
            self.known[case.subject, case.ledger.note] = (count_so_far + 1, first)
        if case.outcome in RED:
            # The most urgent, and of those the first; heaps hold their smallest on top.
            text = f"{case.id}: {case.message}" if case.message else case.id
            _keep(self._worst, (-ENDINGS.index(case.outcome), -count, case.outcome, text))
        elif case.not_kept and (case.not_kept in self.not_kept or len(self.not_kept) < MOST):
            count_so_far, first = self.not_kept.get(case.not_kept, (0, case.id))
            self.not_kept[case.not_kept] = (count_so_far + 1, first)
        if case.seconds:
            _keep(self._slowest, (case.seconds, -count, case.id))
        if case.error is not None and case.error.relative and case.outcome not in _WRITTEN_UP:
            error = case.error
            location = f"{case.id} (step {error.step}, {error.name}, rank {error.rank})"
            _keep(self._errors, (error.relative, error.ulps, -count, location))

    @property
    def total(self) -> int:
        return sum(self.outcomes.values())

    @property
    def red(self) -> int:
        """The number of cases that need a person."""
        return sum(count for outcome, count in self.outcomes.items() if outcome in RED)

    @property
    def worst(self) -> list[tuple[str, str]]:
        """The outcome and the text of the worst cases, the most urgent first."""
        return [(outcome, text) for _, _, outcome, text in sorted(self._worst, reverse=True)]

    @property
    def slowest(self) -> list[tuple[float, str]]:
        """The seconds and the id of the slowest cases."""
        return [(seconds, id) for seconds, _, id in sorted(self._slowest, reverse=True)]

    @property
    def errors(self) -> list[tuple[float, float, str]]:
        """The largest errors: relative, in ULPs, and the location."""
        return [(relative, ulps, location) for relative, ulps, _, location in sorted(self._errors, reverse=True)]

    @property
    def red_laws(self) -> list[tuple[str, str, Counter[Ending]]]:
        """The subject, the law and the outcomes of each law that is not green, in the order of the run."""
        return [(subject, law, ends) for (subject, law), ends in self.laws.items() if RED & ends.keys()]


def _keep(heap: list[tuple], item: tuple) -> None:  # type: ignore[type-arg]
    if len(heap) < MOST:
        heapq.heappush(heap, item)
    else:
        heapq.heappushpop(heap, item)
