"""Make the page's data of the nights before: the worst outcome of each law in each night, and the changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from everyrank.model.outcome import ENDINGS, RED, Ending
from everyrank.reports.history.history import LETTERS, History, LawHistory, LawNight
from everyrank.reports.page.columns import figure
from everyrank.reports.page.outcomes import SHOWN

#: How many of the latest nights are drawn. Flips and flake rates count all nights.
NIGHTS = 90


def nights_data(history: History) -> dict[str, Any]:
    """Return the page's data of a history."""
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
                "counts": _counts(night.counts),
            }
            for night in history.nights[first:]
        ],
        "laws": [{**_law(law, first), "alike": number} for law, number in _alike(history.laws)],
        "earlier": first,
        "left_out": list(history.left_out),
        "letters": _letters(),
    }


def _letters() -> str:
    """Return the letter of each of the page's outcomes; a space where a history has none."""
    letters: dict[str, str] = dict(zip(ENDINGS, LETTERS, strict=False))
    return "".join(letters.get(outcome, " ") for outcome in SHOWN)


def _alike(laws: Sequence[LawHistory]) -> Iterator[tuple[LawHistory, int]]:
    """Yield each law with the number of its row: laws of several subjects that were red alike share one."""
    numbers: dict[object, int] = {}
    for law in laws:
        key = law.alike if law.first_bad is not None else (law.subject, law.contract, law.law)
        yield law, numbers.setdefault(key, len(numbers))


def _law(law: LawHistory, first: int) -> dict[str, Any]:
    return {
        "subject": law.subject,
        "contract": law.contract,
        "law": law.law,
        "points": [_point(point) for point in law.points[first:]],
        "red": law.red,
        "since": _index(law.since, first),
        "first_bad": _index(law.first_bad, first),
        "flips": law.flips,
        "flaked": law.flaked,
        "flake_rate": round(law.flake_rate, 6),
        "pace": figure(law.pace),
        "drift": figure(law.drift),
        "slower": law.slower,
        "less_exact": law.less_exact,
    }


def _counts(counts: Mapping[Ending, int]) -> list[int]:
    """Return the numbers of cases in the order of the page's outcomes. A night counts no deadlocks apart."""
    by_name = {str(ending): number for ending, number in counts.items()}
    return [by_name.get(outcome, 0) for outcome in SHOWN]


def _point(point: LawNight | None) -> list[Any] | None:
    """Return the worst outcome, the numbers of red and of all cases, the seconds, and the largest error."""
    if point is None or not point.counts:
        return None
    worst = next(index for index, number in enumerate(_counts(point.counts)) if number)
    red = sum(number for ending, number in point.counts.items() if ending in RED)
    return [worst, red, sum(point.counts.values()), figure(point.seconds), figure(point.relative)]


def _index(night: int | None, first: int) -> int | None:
    """Return the night's index among the nights that are drawn; -1 for an earlier night."""
    return None if night is None else max(night - first, -1)
