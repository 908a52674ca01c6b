"""Tonight against last night: what each case came to then and now, and what that means."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from everyrank.reports.model import ENDINGS, RED, CaseLine, Ending, ErrorPart
from everyrank.reports.pace import Pace, pace
from everyrank.reports.pairing import Aliases, pair
from everyrank.reports.reading import Run

Kind = Literal["regression", "stale", "fix", "changed", "new", "gone"]

#: In this order they are told.
KINDS: tuple[Kind, ...] = ("regression", "stale", "fix", "changed", "new", "gone")

#: Of these a case is red that was not.
WORSE: frozenset[Kind] = frozenset(("regression", "stale"))

_GOOD: frozenset[Ending] = frozenset(("pass", "approximate"))
_DECLARED: frozenset[Ending] = frozenset(("known", "unsupported"))

#: The error of a case grew if it is so many times what it was and by so many ULPs; where it was exact, if it is not.
GREW, ULPS = 4.0, 2.0


@dataclass(frozen=True)
class Change:
    """A case that came to something else than before."""

    kind: Kind
    old: CaseLine | None
    new: CaseLine | None

    @property
    def case(self) -> CaseLine:
        """As it is called now, where it is still there."""
        case = self.new or self.old
        assert case is not None
        return case

    @property
    def step(self) -> tuple[Ending | None, Ending | None]:
        """How it ended then and now; None where it was not there."""
        return self.old.outcome if self.old else None, self.new.outcome if self.new else None


@dataclass(frozen=True)
class LessExact:
    """A case that ended as before, further from the reference."""

    case: CaseLine
    old: ErrorPart
    new: ErrorPart


@dataclass(frozen=True)
class Diff:
    """What changed from one run to another."""

    old: Run
    new: Run
    changes: tuple[Change, ...]
    pace: Pace
    less_exact: tuple[LessExact, ...]
    still_red: int = 0  # cases that are red, and were
    allow_gone: bool = False

    def of_kind(self, kind: Kind) -> list[Change]:
        return [change for change in self.changes if change.kind == kind]

    @property
    def new_troubles(self) -> list[str]:
        """What went wrong beside the cases now and did not before; an interrupted run says as little each time."""
        before = {detail for reason in self.old.conclusion.beside for detail in reason.details}
        return [
            detail
            for reason in self.new.conclusion.beside
            for detail in reason.details
            if detail not in before or reason.kind == "interrupted"
        ]

    @property
    def nothing_ran(self) -> bool:
        """Whether no case of the new run was tried, so that it shows nothing."""
        return any(reason.kind == "nothing-ran" for reason in self.new.conclusion.reasons)

    @property
    def regressed(self) -> bool:
        """Whether something is red that was not: a case, a declaration, or what stands beside the cases."""
        return any(change.kind in WORSE for change in self.changes) or bool(self.new_troubles)

    @property
    def passed(self) -> bool:
        """Whether the new run is no worse than the old one, and holds all that the old one held.

        What went wrong beside the cases fails each night, not only the first: a file that cannot be collected, or an
        interrupted run, keeps something from being compared at all.
        """
        proof = not self.nothing_ran and not self.new.conclusion.beside
        return proof and not self.regressed and (self.allow_gone or not self.of_kind("gone"))


def diff(old: Run, new: Run, aliases: Aliases | None = None, allow_gone: bool = False) -> Diff:
    """Compare two runs, case by case. With ``allow_gone`` cases may be missing now."""
    pairs = pair(old, new, aliases or Aliases())
    changes = [Change(kind, a, b) for a, b in pairs.both if (kind := judged(a.outcome, b.outcome)) is not None]
    changes += [Change("regression" if case.outcome in RED else "new", None, case) for case in pairs.new]
    changes += [Change("gone", case, None) for case in pairs.gone]
    order = {ending: place for place, ending in enumerate(ENDINGS)}
    changes.sort(key=lambda change: (KINDS.index(change.kind), order[change.case.outcome]))
    still = sum(before.outcome in RED and now.outcome in RED for before, now in pairs.both)
    less_exact = tuple(_less_exact(pairs.both))
    return Diff(old, new, tuple(changes), pace(pairs.both), less_exact, still, allow_gone)


def judged(old: Ending, new: Ending) -> Kind | None:
    """What it means that a case which ended so now ends so; None if it ends as before.

    A declaration that no longer holds is stale, and red, though the case works now: what is left to do is to remove
    it. A case that was not there before and is red is a regression (see `diff`).
    """
    if old == new:
        return None
    if (old in RED or old in _DECLARED) and new in _GOOD:
        return "fix"
    if new in RED and old not in RED:
        return "stale" if new == "stale" and old in _DECLARED else "regression"
    return "changed"


def _less_exact(both: Iterable[tuple[CaseLine, CaseLine]]) -> list[LessExact]:
    found = [
        LessExact(new, old.error, new.error)
        for old, new in both
        if old.error is not None
        and new.error is not None
        and old.outcome == new.outcome
        and _grew(old.error, new.error)
    ]
    return sorted(found, key=lambda one: -one.new.relative)


def _grew(old: ErrorPart, new: ErrorPart) -> bool:
    if old.relative == 0:
        return new.relative > 0
    return new.relative > GREW * old.relative and new.ulps >= old.ulps + ULPS
