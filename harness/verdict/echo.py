"""The failure of a rank that fails only because another rank has ended."""

from __future__ import annotations

import re

_ECHO = re.compile(
    r"connection (was )?(closed|reset|refused)|closed by peer|reset by peer|broken pipe|socket closed|\beof\b|"
    r"remote (process|side) (exited|closed)|communicator (was|is) aborted|pipe closed",
    re.IGNORECASE,
)


def is_echo(brief: str) -> bool:
    """Return whether a failure is such an echo. An assertion never is: the user wrote its text."""
    return not brief.startswith("AssertionError") and bool(_ECHO.search(brief))
