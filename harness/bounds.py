"""Bounds on what travels: a test may print and say as much as it likes."""

from __future__ import annotations

from typing import Any

#: Of a longer text, this much of the start and as much of the end is kept, in characters.
KEPT = 50_000


def truncate(value: Any) -> Any:
    """The value with every text in it bounded, and fit to be sent as UTF-8."""
    if isinstance(value, str):
        if len(value) > 2 * KEPT:
            left_out = len(value) - 2 * KEPT
            value = f"{value[:KEPT]}\n... [everyrank left out {left_out} characters here] ...\n{value[-KEPT:]}"
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {str(key): truncate(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [truncate(one) for one in value]
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return str(value)


def one_line(text: str, most: int = 300) -> str:
    """The text on one line, shortened."""
    text = truncate(" ".join(text.split()))
    return text if len(text) <= most else text[:most] + " ..."
