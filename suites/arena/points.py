"""Points that several contracts have: with an optimizer of the table, and with a part of the law ``surface``."""

from __future__ import annotations

from dataclasses import dataclass

from everyrank.fixtures.optimizers import Row, Variant
from everyrank.suites.engine.contract import Point


@dataclass(frozen=True, kw_only=True)
class OptimizerPoint(Point):
    """A point with an optimizer of the table, in one variant."""

    row: Row
    variant: Variant


@dataclass(frozen=True, kw_only=True)
class SurfacePoint(Point):
    """A point of the law ``surface``, with the part that is used, or ``all``."""

    part: str
