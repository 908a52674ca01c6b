"""How things are counted in texts."""

from __future__ import annotations


def count(number: int, noun: str) -> str:
    """Return the number with its noun: ``1 case``, ``1,200 cases``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
