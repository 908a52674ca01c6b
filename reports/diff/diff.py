"""Compare tonight's run with last night's: the outcome of each case then and now, and what the change means."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from everyrank.model.outcome import ENDINGS, HOLDS, RED, Ending
from everyrank.reports.diff.notice import NoticesLess, notices_less
from everyrank.reports.diff.pace import Pace, pace
from everyrank.reports.diff.pairing import Aliases, pair
from everyrank.reports.diff.withstand import WithstandsLess, withstands_less
from everyrank.reports.runfile.model import CaseLine, ErrorPart
from everyrank.reports.runfile.read import Run

Kind = Literal["regression", "stale", "fix", "changed", "new", "gone"]

#: The kinds of change, in the order in which they are printed.
KINDS: tuple[Kind, ...] = ("regression", "stale", "fix", "changed", "new", "gone")

#: Kinds of change in which a case is red now and was not before.
WORSE: frozenset[Kind] = frozenset(("regression", "stale"))

_DECLARED: frozenset[Ending] = frozenset(("known", "unsupported"))

#: An error grew if it is more than GREW times the old error and at least ULPS larger, or if it was exact before.
GREW, ULPS = 4.0, 2.0


@dataclass(frozen=True)
class Change:
    """A case whose outcome changed."""

    kind: Kind
    old: CaseLine | None
    new: CaseLine | None

    @property
    def case(self) -> CaseLine:
        """The case under its current name; its old line if it is gone."""
        case = self.new or self.old
        assert case is not None
        return case

    @property
    def step(self) -> tuple[Ending | None, Ending | None]:
        """The outcomes then and now; None for a run that does not have the case."""
        return self.old.outcome if self.old else None, self.new.outcome if self.new else None


@dataclass(frozen=True)
class LessExact:
    """A case with the same outcome as before and a larger error against the reference."""

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
    notices_less: tuple[NoticesLess, ...] = ()
    withstands_less: tuple[WithstandsLess, ...] = ()
    still_red: int = 0  # cases that are red, and were
    allow_gone: bool = False

    def of_kind(self, kind: Kind) -> list[Change]:
        """Return the changes of this kind."""
        return [change for change in self.changes if change.kind == kind]

    @property
    def new_troubles(self) -> list[str]:
        """The reasons beside the cases that the old run did not have. An interruption always counts as new."""
        before = {detail for reason in self.old.conclusion.beside for detail in reason.details}
        return [
            detail
            for reason in self.new.conclusion.beside
            for detail in reason.details
            if detail not in before or reason.kind == "interrupted"
        ]

    @property
    def nothing_ran(self) -> bool:
        """Whether no case of the new run was tried."""
        return any(reason.kind == "nothing-ran" for reason in self.new.conclusion.reasons)

    @property
    def regressed(self) -> bool:
        """Whether something is red that was not red before: a case, a declaration, or a reason beside the cases."""
        return any(change.kind in WORSE for change in self.changes) or bool(self.new_troubles)

    @property
    def passed(self) -> bool:
        """Whether the new run is no worse than the old run, and has all of its cases.

        A reason beside the cases fails each night, not only the first: if a file cannot be collected or the run is
        interrupted, some cases cannot be compared.
        """
        proof = not self.nothing_ran and not self.new.conclusion.beside
        return proof and not self.regressed and (self.allow_gone or not self.of_kind("gone"))


def diff(old: Run, new: Run, aliases: Aliases | None = None, allow_gone: bool = False) -> Diff:
    """Compare two runs case by case. With ``allow_gone``, cases may be missing from the new run."""
    pairs = pair(old, new, aliases or Aliases())
    changes = [Change(kind, a, b) for a, b in pairs.both if (kind := judged(a.outcome, b.outcome)) is not None]
    changes += [Change("regression" if case.outcome in RED else "new", None, case) for case in pairs.new]
    changes += [Change("gone", case, None) for case in pairs.gone]
    order = {ending: index for index, ending in enumerate(ENDINGS)}
    changes.sort(key=lambda change: (KINDS.index(change.kind), order[change.case.outcome]))
    still = sum(before.outcome in RED and now.outcome in RED for before, now in pairs.both)
    less_exact = tuple(_less_exact(pairs.both))
    unnoticed, weaker = tuple(notices_less(pairs.both)), tuple(withstands_less(pairs.both))
    return Diff(old, new, tuple(changes), pace(pairs.both), less_exact, unnoticed, weaker, still, allow_gone)


def judged(old: Ending, new: Ending) -> Kind | None:
    """Return the kind of change from one outcome to another; None if they are equal.

    A declaration that no longer holds is stale and red although the case works now: a person must remove it. A new
    case that is red is a regression (see `diff`).
    """
    if old == new:
        return None
    if (old in RED or old in _DECLARED) and new in HOLDS:
        return "fix"
    if new in RED and old not in RED:
        return "stale" if new == "stale" and old in _DECLARED else "regression"
    return "changed"


def _less_exact(both: Iterable[tuple[CaseLine, CaseLine]]) -> list[LessExact]:
    cases = [
        LessExact(new, old.error, new.error)
        for old, new in both
        if old.error is not None
        and new.error is not None
        and old.outcome == new.outcome
        and _grew(old.error, new.error)
    ]
    return sorted(cases, key=lambda pair: -pair.new.relative)


def _grew(old: ErrorPart, new: ErrorPart) -> bool:
    if old.relative == 0:
        return new.relative > 0
    return new.relative > GREW * old.relative and new.ulps >= old.ulps + ULPS
