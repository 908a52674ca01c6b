"""Texts for a test and its failure that are equal on all ranks that agree."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from everyrank.stack.frames import Frame, is_users
from everyrank.wire.truncate import one_line

if TYPE_CHECKING:
    import pytest


def fingerprint(item: pytest.Item) -> str:
    """Return a text that is equal on all ranks that run the same test with the same parameters."""
    callspec = getattr(item, "callspec", None)
    params = sorted(getattr(callspec, "params", {}).items())
    return item.nodeid + re.sub(r" at 0x[0-9a-f]+", "", "".join(f" {name}={safe(value)}" for name, value in params))


def safe(value: object) -> str:
    """Return the repr; never raise."""
    try:
        return repr(value)[:1000]
    except Exception as error:
        return f"<{type(value).__name__} whose repr raised {type(error).__name__}>"


def describe_failure(excinfo: pytest.ExceptionInfo[BaseException] | None) -> tuple[str, str, str]:
    """Return a failure in one line, its location, and a text that is equal for equal failures."""
    if excinfo is None:
        return "", "", ""
    frames = (Frame(str(entry.path), entry.lineno + 1, entry.name) for entry in excinfo.traceback)
    return describe_exception(excinfo.value, frames)


def describe_exception(error: BaseException, frames: Iterable[Frame]) -> tuple[str, str, str]:
    """Do the same for an exception and its traceback, outermost frame first."""
    kind = type(error)
    try:
        message = str(error)
    except Exception as unreadable:
        message = f"(its message cannot be read: {type(unreadable).__name__})"
    first = next((line for line in message.splitlines() if line.strip()), "")
    brief = one_line(f"{kind.__name__}: {first}" if first else kind.__name__)
    location = next((str(frame) for frame in reversed(list(frames)) if is_users(frame.file)), "")
    plain = re.sub(r"0x[0-9a-f]+", "0x", f"{kind.__module__}.{brief}")
    return brief, location, f"{plain} at {location}"
