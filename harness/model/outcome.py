"""The outcomes of tests and cases in one word, and the one function that decides the outcome of a case."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Literal

Ending = Literal[
    "pass", "approximate", "fail", "known", "stale", "unsupported", "not-applicable", "skipped", "error", "timeout",
    "crash", "interrupted", "not-run",
]  # fmt: skip

#: The outcomes, in the order in which they are counted and shown: those that need a person come first.
ENDINGS: tuple[Ending, ...] = (
    "crash", "timeout", "error", "fail", "stale", "interrupted", "not-run", "known", "approximate", "unsupported",
    "skipped", "not-applicable", "pass",
)  # fmt: skip

#: Outcomes of a case whose law holds.
HOLDS: frozenset[Ending] = frozenset(("pass", "approximate"))

#: Outcomes of a case that was not tried, or not to its end: nothing is known of it.
NOT_TRIED: frozenset[Ending] = frozenset(("interrupted", "not-run", "skipped", "not-applicable"))

#: Outcomes with which a run is not green.
RED: frozenset[Ending] = frozenset(("crash", "timeout", "error", "fail", "stale", "interrupted", "not-run"))


class Rule(str, Enum):
    """A row of the verdict's truth table: what decided a test. The values stand in run files."""

    LAUNCHER_LOST = "launcher lost"
    NOT_RUN = "not run"
    DIFFERENT_ITEMS = "different items"
    LOST = "lost"
    INTERRUPTED = "interrupted"
    DEADLINE = "deadline"
    DEADLOCK = "deadlock"
    FAILED = "failed"
    SOME_SKIPPED = "some skipped"
    CUT = "cut"
    NO_FAULT = "no fault"
    SILENT = "silent"
    XFAILED = "xfailed"
    DISORDER = "disorder"
    ALL_SKIPPED = "all skipped"
    INCOMPLETE = "incomplete"
    XPASSED = "xpassed"
    STRICT_XPASS = "strict xpass"
    UNEQUAL_SIZES = "unequal sizes"
    PASSED = "passed"
    #: Of a test that has passed, and may not leave what it left.
    LEAKS = "leaks"
    #: Of a test that got no world.
    REFUSED = "refused"
    SKIPPED = "skipped"


#: The outcome of a test that failed by a rule of the verdict, whatever its ranks filed.
RULES: dict[str, Ending] = {
    Rule.DEADLINE: "timeout",
    Rule.DEADLOCK: "timeout",
    Rule.LOST: "crash",
    Rule.LAUNCHER_LOST: "crash",
    Rule.SILENT: "crash",
    Rule.INTERRUPTED: "interrupted",
    Rule.NOT_RUN: "error",
    Rule.DIFFERENT_ITEMS: "error",
    Rule.REFUSED: "error",
    Rule.STRICT_XPASS: "stale",
}


@dataclass(frozen=True)
class PhaseEnd:
    """The end of one phase of a test, as pytest reports it."""

    when: str  # setup, call, teardown
    outcome: str  # passed, failed, skipped
    expected: bool = False  # whether it xfailed, or xpassed
    filed: str = ""  # the outcome that the ranks filed for the case, if it is one


def ending(rule: str, phases: Iterable[PhaseEnd]) -> Ending:
    """Return the outcome of a test that is no case, from the verdict's rule and pytest's reports."""
    phases = tuple(phases)
    failed = next((phase for phase in phases if phase.outcome == "failed"), None)
    if failed is not None:
        return RULES.get(rule) or ("fail" if failed.when == "call" else "error")
    if any(phase.outcome == "skipped" for phase in phases):
        return "known" if any(phase.expected for phase in phases) else "skipped"
    return "pass"


def case_ending(rule: str, phases: Iterable[PhaseEnd], approximate: bool = False) -> str:
    """Return the outcome of a case: what its ranks filed, unless the whole world ended otherwise.

    ``approximate``: a rank used the bound that its subject states, so a pass is only that. The text is empty if
    nothing was filed, as for a test that was skipped.
    """
    ending = ""
    for phase in phases:
        if phase.outcome == "failed":
            if ending not in RED:
                ending = RULES.get(rule) or (phase.filed if phase.filed in ("fail", "stale") else "error")
        elif ending not in RED and ending != "known":
            ending = "known" if phase.when == "call" and phase.expected else phase.filed or ending
    return "approximate" if ending == "pass" and approximate else ending
