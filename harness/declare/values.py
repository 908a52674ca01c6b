"""Checks of values, for the mark ``world`` and for options. Every run imports this module, so it imports little."""

from __future__ import annotations

import math
from typing import Any

from everyrank.errors import MisuseError


def is_seconds(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0 and math.isfinite(value)


def sizes(value: Any) -> tuple[int, ...]:
    """Return the world sizes that a value names: one size, or a list of sizes."""
    values = list(value) if isinstance(value, (list, tuple, set, frozenset, range)) else [value]
    if not values:
        raise MisuseError("the list of world sizes is empty")
    for size in values:
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise MisuseError(f"a world size must be a whole number of ranks, 1 or more, not {size!r}")
    if len(set(values)) < len(values):
        raise MisuseError(f"a world size is named twice in {values}")
    return tuple(values)
