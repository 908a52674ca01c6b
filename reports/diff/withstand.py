"""Cases that fail with a fault at points at which they were green before: the mark ``faults``, in a sweep."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from everyrank.model.fault import PointPart
from everyrank.model.outcome import RED
from everyrank.reports.runfile.model import CaseLine


@dataclass(frozen=True)
class WithstandsLess:
    """A case that fails now with its fault at some points, of a kind that was never red in the old run."""

    case: CaseLine
    fault: str
    points: tuple[str, ...]


def withstands_less(both: Iterable[tuple[CaseLine, CaseLine]]) -> Iterator[WithstandsLess]:
    """Yield the cases that fail now at a point of a kind that was tried before and always green.

    Lines of code move, and numbers do too, so a point is known by what it is and by its file.
    """
    for before, now in both:
        if before.sweep is None or now.sweep is None or before.sweep.fault != now.sweep.fault:
            continue
        red = {_kind(point) for point in before.sweep.points if point.outcome in RED}
        green = {_kind(point) for point in before.sweep.points if point.outcome == "pass"} - red
        points = [point for point in now.sweep.points if point.outcome in RED and _kind(point) in green]
        if points:
            texts = (f"{point.name} at {point.location}" for point in points)
            yield WithstandsLess(now, now.sweep.fault, tuple(dict.fromkeys(texts)))


def _kind(point: PointPart) -> tuple[str, str]:
    return point.name, point.location.rpartition(":")[0]
