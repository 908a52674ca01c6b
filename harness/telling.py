"""A test and its failure in words that ranks can compare."""

from __future__ import annotations

import re

import pytest
from everyrank.bounds import one_line
from everyrank.frames import Frame, is_users


def fingerprint(item: pytest.Item) -> str:
    """Equal on all ranks that run the same test with the same parameters."""
    callspec = getattr(item, "callspec", None)
    params = sorted(getattr(callspec, "params", {}).items())
    return item.nodeid + re.sub(r" at 0x[0-9a-f]+", "", "".join(f" {name}={safe(value)}" for name, value in params))


def safe(value: object) -> str:
    """A repr that cannot fail."""
    try:
        return repr(value)[:1000]
    except Exception as error:
        return f"<{type(value).__name__} whose repr raised {type(error).__name__}>"


def describe(excinfo: pytest.ExceptionInfo[BaseException] | None) -> tuple[str, str, str]:
    """A failure in one line, where it came from, and a text that is equal for equal failures."""
    if excinfo is None:
        return "", "", ""
    try:
        said = str(excinfo.value)
    except Exception as error:
        said = f"(its text cannot be had: {type(error).__name__})"
    first = next((line for line in said.splitlines() if line.strip()), "")
    brief = one_line(f"{excinfo.type.__name__}: {first}" if first else excinfo.type.__name__)
    where = ""
    for entry in reversed(excinfo.traceback):
        if is_users(str(entry.path)):
            where = str(Frame(str(entry.path), entry.lineno + 1, entry.name))
            break
    plain = re.sub(r"0x[0-9a-f]+", "0x", f"{excinfo.type.__module__}.{brief}")
    return brief, where, f"{plain} at {where}"
