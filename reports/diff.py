"""Tonight against last night: what each case came to then and now, and what that means."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from everyrank.reports.model import ENDINGS, RED, CaseLine, Ending, ErrorPart
from everyrank.reports.pace import Pace, pace
from everyrank.reports.pairing import Aliases, pair
from everyrank.reports.reading import Run

Kind = Literal["regression", "fix", "changed", "new", "gone"]

#: In this order they are told.
KINDS: tuple[Kind, ...] = ("regression", "fix", "changed", "new", "gone")

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

    def of(self, kind: Kind) -> list[Change]:
        return [change for change in self.changes if change.kind == kind]

    @property
    def regressed(self) -> bool:
        return any(change.kind == "regression" for change in self.changes)


def diff(old: Run, new: Run, aliases: Aliases | None = None) -> Diff:
    """Compare two runs, case by case."""
    pairs = pair(old, new, aliases or Aliases())
    changes = [Change(kind, a, b) for a, b in pairs.both if (kind := judged(a.outcome, b.outcome)) is not None]
    changes += [Change("regression" if case.outcome in RED else "new", None, case) for case in pairs.new]
    changes += [Change("gone", case, None) for case in pairs.gone]
    order = {ending: place for place, ending in enumerate(ENDINGS)}
    changes.sort(key=lambda change: (KINDS.index(change.kind), order[change.case.outcome]))
    return Diff(old, new, tuple(changes), pace(pairs.both), tuple(_less_exact(pairs.both)))


def judged(old: Ending, new: Ending) -> Kind | None:
    """What it means that a case which ended so now ends so; None if it ends as before.

    A stale entry of a ledger is red, but of a case that was known not to work it is good news: what is left to do is
    to remove the entry. A case that was not there before and is red is a regression (see `diff`).
    """
    if old == new:
        return None
    if (old in RED or old in _DECLARED) and (new in _GOOD or new == "stale"):
        return "fix"
    if new in RED and old not in RED:
        return "regression"
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
