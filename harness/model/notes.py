"""Where code that knows nothing of ranks notes what reports are to show of the running test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Notes = dict[str, Any]

_current: list[Callable[[], Notes]] = []  # a process is one rank; empty outside of a rank


def keep(current: Callable[[], Notes]) -> None:
    """Keep the notes of this process' tests from now on; the function returns those of the running one."""
    _current[:] = [current]


def notes() -> Notes | None:
    """Return the notes of the running test, plain data by name; None if nobody reads any, as in a script."""
    return _current[-1]() if _current else None
