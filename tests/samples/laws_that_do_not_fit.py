"""Laws that do not fit their points: `make check` has mypy refuse each, and report an `ignore` that is not needed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from everyrank.suites import Point
from everyrank.suites.replicate.contract import CONTRACT
from everyrank.suites.replicate.laws.modules import BufferPoint
from everyrank.suites.replicate.points import each_size


@dataclass(frozen=True, kw_only=True)
class RatePoint(Point):
    rate: float


@dataclass(frozen=True, kw_only=True)
class StepPoint(Point):
    steps: int


def rates() -> Iterator[RatePoint]:
    yield RatePoint("", 2, rate=0.1)


@CONTRACT.law("fits", rates)
def fits(arena: object, point: RatePoint) -> None:
    print(point.rate, point.size)


@CONTRACT.law("reads-little", rates)
def reads_little(arena: object, point: Point) -> None:
    print(point.size)


@CONTRACT.law("takes-another-point", rates)  # type: ignore[arg-type]
def takes_another_point(arena: object, point: StepPoint) -> None:
    print(point.steps)


@CONTRACT.law("takes-another-point-of-a-lambda", lambda: [RatePoint("", 2, rate=0.1)])  # type: ignore[arg-type]
def takes_another_point_of_a_lambda(arena: object, point: StepPoint) -> None:
    print(point.steps)


@CONTRACT.law("reads-a-missing-field", rates)
def reads_a_missing_field(arena: object, point: RatePoint) -> None:
    print(point.steps)  # type: ignore[attr-defined]


@CONTRACT.law("of-each-size", lambda: each_size(partial(BufferPoint, manner="train"), 2, 3))
def of_each_size(arena: object, point: BufferPoint) -> None:
    print(point.manner)


RatePoint("", 2, rate="0.1")  # type: ignore[arg-type]
partial(BufferPoint, manner="trains")  # type: ignore[arg-type]
