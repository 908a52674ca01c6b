"""The nights before, as the page draws them: each law's worst outcome night by night, and what changed."""

from __future__ import annotations

import math
from pathlib import PurePath
from typing import Any

from everyrank.reports.history import LETTERS, History, LawHistory, Point
from everyrank.reports.model import ENDINGS, RED

#: The latest so many nights are drawn; what is said of flips and flakes is of all.
NIGHTS = 90


def nights_data(history: History) -> dict[str, Any]:
    """What the page is told of a history."""
    first = max(0, len(history.nights) - NIGHTS)
    return {
        "nights": [
            {
                "file": PurePath(night.path).name,
                "date": night.date,
                "torch": night.torch,
                "kit": night.kit,
                "source": str(night.source),
                "ci": night.source.web_link,
                "whole": night.whole,
                "state": night.state,
                "reasons": list(night.reasons),
                "seconds": night.seconds,
                "counts": [night.counts.get(ending, 0) for ending in ENDINGS],
            }
            for night in history.nights[first:]
        ],
        "laws": [_law(law, first) for law in history.laws],
        "earlier": first,
        "left_out": list(history.left_out),
        "letters": LETTERS[: len(ENDINGS)],
    }


def _law(law: LawHistory, first: int) -> dict[str, Any]:
    return {
        "subject": law.subject,
        "contract": law.contract,
        "law": law.law,
        "points": [_point(point) for point in law.points[first:]],
        "red": law.red,
        "since": _place(law.since, first),
        "first_bad": _place(law.first_bad, first),
        "flips": law.flips,
        "flaked": law.flaked,
        "flake_rate": round(law.flake_rate, 6),
        "pace": _figure(law.pace),
        "drift": _figure(law.drift),
        "slower": law.slower,
        "less_exact": law.less_exact,
    }


def _point(point: Point | None) -> list[Any] | None:
    """Worst outcome, how many cases are red, how many there are, seconds, largest relative error."""
    if point is None or not point.counts:
        return None
    worst = next(place for place, ending in enumerate(ENDINGS) if ending in point.counts)
    red = sum(number for ending, number in point.counts.items() if ending in RED)
    return [worst, red, sum(point.counts.values()), _figure(point.seconds), _figure(point.relative)]


def _place(night: int | None, first: int) -> int | None:
    """Among the nights that are drawn; one before them is told as -1."""
    return None if night is None else max(night - first, -1)


def _figure(value: float | None) -> float | str | None:
    """Three figures; JSON has none for inf."""
    if value is None:
        return None
    return float(f"{value:.3g}") if math.isfinite(value) else str(value)
