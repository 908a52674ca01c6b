"""The outcomes as the page shows them: a world that could never have continued is a word of its own there."""

from __future__ import annotations

from everyrank.model.outcome import ENDINGS, RED, Rule
from everyrank.reports.runfile.model import CaseLine

#: In a run file a deadlock is a timeout that the rule distinguishes, so that both are counted and accepted alike.
DEADLOCK = "deadlock"
#: The outcomes in the order in which the page counts and shows them.
SHOWN: tuple[str, ...] = tuple(
    name for ending in ENDINGS for name in ((ending, DEADLOCK) if ending == "timeout" else (ending,))
)
SHOWN_RED = RED | {DEADLOCK}


def shown(case: CaseLine) -> str:
    """Return the case's outcome as the page shows it."""
    return DEADLOCK if case.outcome == "timeout" and case.rule == Rule.DEADLOCK else case.outcome
