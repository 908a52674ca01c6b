"""The laws of ``sharded-optimizer`` about errors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from everyrank.suites.engine.contract import Point
from everyrank.suites.sharded_optimizer.arena import Arena
from everyrank.suites.sharded_optimizer.contract import CONTRACT
from everyrank.suites.sharded_optimizer.faults import FAULTS
from everyrank.suites.sharded_optimizer.law_player import playing
from everyrank.suites.sharded_optimizer.points import cut, whole

_CORE = {"construction", "step", "closure", "gradient"}


@dataclass(frozen=True, kw_only=True)
class FaultPoint(Point):
    """A point with a fault, and the rank that has it."""

    fault: str
    victim: int


def _faults() -> Iterator[FaultPoint]:
    for fault in FAULTS:
        for size, victim in ((3, 1), (3, 0), (3, 2), (2, 1)):
            core = fault in _CORE and (size, victim) == (3, 1)
            yield FaultPoint(f"{fault}-rank{victim}", size, core=core, fault=fault, victim=victim)


@CONTRACT.law("errors.rank", _faults)
def on_a_rank(arena: Arena, point: FaultPoint) -> None:
    """An error on one rank is soon raised on all ranks; its text names the rank and contains the text of the cause.

    The rank that is named nearest to the cause, always before it or always behind it, is the one that failed. A rank
    that raises the error of another may also name itself.
    If the cause cannot be printed, the name of its class is enough. `step` and `after-step` fail in an optimizer
    class that torch does not have: a subject that refuses such a class with NotImplementedError lacks them.
    """
    # With a closure no parameter is whole: after an error that is not passed on, others would wait for its gradient.
    second = whole(4) if FAULTS[point.fault].error is None else cut(5)
    with playing(arena, point, [cut(7, 3), second]) as player:
        player.fail(point.victim, point.fault)
