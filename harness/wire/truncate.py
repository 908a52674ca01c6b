"""Limits on the length of texts that ranks send: a test may print as much as it likes."""

from __future__ import annotations

from typing import Any

#: The characters that are kept at each end of a longer text.
KEPT = 50_000


def truncate(value: Any) -> Any:
    """Return the value with every text in it shortened and valid as UTF-8."""
    if isinstance(value, str):
        if len(value) > 2 * KEPT:
            left_out = len(value) - 2 * KEPT
            value = f"{value[:KEPT]}\n... [everyrank left out {left_out} characters here] ...\n{value[-KEPT:]}"
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {str(key): truncate(member) for key, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [truncate(member) for member in value]
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return str(value)


def one_line(text: str, most: int = 300) -> str:
    """Return the text on one line, shortened."""
    text = truncate(" ".join(text.split()))
    return text if len(text) <= most else text[:most] + " ..."
