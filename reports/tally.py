"""What is kept of a run's lines until its end: counts, and the ten of each kind that a person wants to see first."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from everyrank.reports.model import ENDINGS, RED, CaseLine, Ending

#: So many of the worst, the slowest and the least exact are told.
MOST = 10
#: Of these a large error is no news: it has been written up, or the law does not hold there.
_WRITTEN_UP: frozenset[Ending] = frozenset(("known", "unsupported", "not-applicable"))


@dataclass
class Tally:
    """Counts and records of a run, a line at a time. Of no line more is kept than is told."""

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
            told = f"{case.id}: {case.message}" if case.message else case.id
            _keep(self._worst, (-ENDINGS.index(case.outcome), -count, case.outcome, told))
        elif case.not_kept and (case.not_kept in self.not_kept or len(self.not_kept) < MOST):
            count_so_far, first = self.not_kept.get(case.not_kept, (0, case.id))
            self.not_kept[case.not_kept] = (count_so_far + 1, first)
        if case.seconds:
            _keep(self._slowest, (case.seconds, -count, case.id))
        if case.error is not None and case.error.relative and case.outcome not in _WRITTEN_UP:
            error = case.error
            where = f"{case.id} (step {error.step}, {error.name}, rank {error.rank})"
            _keep(self._errors, (error.relative, error.ulps, -count, where))

    @property
    def total(self) -> int:
        return sum(self.outcomes.values())

    @property
    def red(self) -> int:
        """How many need a person."""
        return sum(count for outcome, count in self.outcomes.items() if outcome in RED)

    @property
    def worst(self) -> list[tuple[str, str]]:
        """Outcome and what to say of it, the most urgent first."""
        return [(outcome, told) for _, _, outcome, told in sorted(self._worst, reverse=True)]

    @property
    def slowest(self) -> list[tuple[float, str]]:
        """Seconds and id."""
        return [(seconds, id) for seconds, _, id in sorted(self._slowest, reverse=True)]

    @property
    def errors(self) -> list[tuple[float, float, str]]:
        """Relative, in ULPs, and where."""
        return [(relative, ulps, where) for relative, ulps, _, where in sorted(self._errors, reverse=True)]

    @property
    def red_laws(self) -> list[tuple[str, str, Counter[Ending]]]:
        """Subject, law and outcomes of each law that is not green, in the order in which they were met."""
        return [(subject, law, ends) for (subject, law), ends in self.laws.items() if RED & ends.keys()]


def _keep(heap: list[tuple], one: tuple) -> None:  # type: ignore[type-arg]
    if len(heap) < MOST:
        heapq.heappush(heap, one)
    else:
        heapq.heappushpop(heap, one)
