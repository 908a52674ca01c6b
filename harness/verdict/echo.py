"""The failure of a rank that fails only because another rank has ended."""

from __future__ import annotations

import re

from everyrank.model.ranks import ranks_text
from everyrank.wire.messages import Phase

_ECHO = re.compile(
    r"connection (was )?(closed|reset|refused)|closed by peer|reset by peer|broken pipe|socket closed|\beof\b|"
    r"remote (process|side) (exited|closed)|communicator (was|is) aborted|pipe closed",
    re.IGNORECASE,
)


def is_echo(brief: str) -> bool:
    """Return whether a failure is such an echo. An assertion never is: the user wrote its text."""
    return not brief.startswith("AssertionError") and bool(_ECHO.search(brief))


def left_early(early: list[int], lost: list[int], phase: Phase) -> str:
    """Return a line on ranks that ended without a failure and so took the connection from others; or an empty text.

    Only gloo's message shows that the connection was one of a group.
    """
    if not early or not is_echo(phase.brief) or "/gloo/" not in phase.brief:
        return ""
    own = "its" if len(early) == 1 else "their"
    location = f" at {phase.location}" if phase.location else ""
    return (
        f"{ranks_text(early)} ended {own} test, or destroyed {own} group, before {ranks_text(lost)} had what "
        f"{'it waits' if len(lost) == 1 else 'they wait'} for{location}\n"
    )
