"""Decide a case's outcome, given what its subject declares: one pure function, tested as a table."""

from __future__ import annotations

from dataclasses import dataclass, field

from everyrank.model.outcome import HOLDS
from everyrank.suites.engine.ledger import Entry, SeenDeviation
from everyrank.suites.engine.subject import Lack
from everyrank.suites.errors import Deviation, kinds


@dataclass(frozen=True)
class Outcome:
    """How a case ended on this rank, before the ledger and the lacks are applied."""

    kind: str  # pass, approximate, fail, error, not-applicable
    text: str = ""
    error: BaseException | None = field(default=None, compare=False)
    explanation: str = ""
    """More about a case that fails."""

    @property
    def bad(self) -> bool:
        return self.kind in ("fail", "error")

    @property
    def well(self) -> bool:
        return self.kind in HOLDS

    @property
    def seen(self) -> SeenDeviation:
        """The deviation, in the terms of a ledger's entry."""
        if isinstance(self.error, Deviation):
            return SeenDeviation(self.kind, self.text, self.error.raised, self.error.off)
        return SeenDeviation(self.kind, self.text, kinds(self.error) if self.error is not None else ())


def judge(outcome: Outcome, entry: Entry | None, lack: Lack | None, others_failed: bool) -> tuple[str, str]:
    """Return the verdict on this rank, and its text.

    ``others_failed``: another rank of this case ended otherwise, so this rank's success proves nothing.
    """
    if lack is not None and not (entry is not None and entry.shared and entry.covers(outcome.seen)):
        return _probed(outcome, lack, others_failed)
    if entry is None:
        return outcome.kind, outcome.text
    if outcome.well and entry.shared:  # another subject's deviation need not be this one's
        return outcome.kind, outcome.text
    if outcome.well and not others_failed:
        return "stale", f"the ledger expects {entry.kind!r} ({entry.case}), and it passes: {entry.remedy}"
    if not outcome.bad:
        return outcome.kind, outcome.text
    if entry.covers(outcome.seen):
        return "known", f"{entry.reason}: {outcome.text.splitlines()[0]}"
    expected = f"the ledger's entry {entry.case!r} expects {entry.expects}"
    return outcome.kind, f"{outcome.text}\n  {expected}\n  seen: {outcome.seen}"


def _probed(outcome: Outcome, lack: Lack, others_failed: bool) -> tuple[str, str]:
    """Judge a declared lack: the subject must refuse with the declared error, or deviate as the lack states."""
    if _refused(outcome.error, lack.error) or (outcome.kind == "fail" and lack.seen and lack.seen in outcome.text):
        return "unsupported", lack.reason
    if outcome.bad:
        return (
            outcome.kind,
            f"{outcome.text}\n  the subject declares a lack here ({lack.reason}), so a refusal was expected",
        )
    if outcome.well and not others_failed:
        return "stale", f"declared as lacking ({lack.reason}), and it works: remove the declaration"
    return outcome.kind, outcome.text


def _refused(error: BaseException | None, refusal: type[BaseException] | tuple[type[BaseException], ...]) -> bool:
    """Return whether the error, or one of its causes, is of the declared kind."""
    expected = refusal if isinstance(refusal, tuple) else (refusal,)
    while error is not None:
        if isinstance(error, Deviation):
            # A rank that waited for one that refused has that rank's deviation, without its cause.
            if {kind.__name__ for kind in expected} & set(error.raised):
                return True
        elif isinstance(error, expected):
            return True
        error = error.__cause__ or error.__context__
    return False
