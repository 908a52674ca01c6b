"""Texts for a test and its failure that are equal on all ranks that agree."""

from __future__ import annotations

import re

import pytest
from everyrank.stack.frames import Frame, is_users
from everyrank.wire.truncate import one_line


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
    try:
        message = str(excinfo.value)
    except Exception as error:
        message = f"(its message cannot be read: {type(error).__name__})"
    first = next((line for line in message.splitlines() if line.strip()), "")
    brief = one_line(f"{excinfo.type.__name__}: {first}" if first else excinfo.type.__name__)
    location = ""
    for entry in reversed(excinfo.traceback):
        if is_users(str(entry.path)):
            location = str(Frame(str(entry.path), entry.lineno + 1, entry.name))
            break
    plain = re.sub(r"0x[0-9a-f]+", "0x", f"{excinfo.type.__module__}.{brief}")
    return brief, location, f"{plain} at {location}"
