"""The law of ``rpc-optimizer`` about features of an optimizer besides its step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from everyrank.suites.arena import surface
from everyrank.suites.arena.subject_errors import subject_acts
from everyrank.suites.engine.contract import Point
from everyrank.suites.rpc_optimizer.arena import Arena
from everyrank.suites.rpc_optimizer.laws.training import CONTRACT


def _points() -> Iterator[Point]:
    for label in surface.LABELS:
        yield Point(label, 2, core=label == "all")


@CONTRACT.law("surface", _points)
def works_or_refuses(arena: Arena, point: Point) -> None:
    """Schedulers, param_groups, step hooks, defaults, deepcopy and repr work as those of torch.optim, or raise."""
    parameters = arena.own([(1, (3, 4)), (1, (2,))])
    with subject_acts():
        ours = arena.build(surface.OPTIMIZER, parameters, **surface.ARGUMENTS)
    reference = surface.OPTIMIZER([param.twin for param in parameters], **surface.ARGUMENTS)
    comparison = arena.comparison()

    def step_copy(other: Any) -> None:
        arena.step(other, parameters, surface.STEPS + 1)

    def step(number: int) -> None:
        arena.step(ours, parameters, number)
        arena.reference_step(reference, parameters, number)
        comparison.step(number, arena.values(), arena.twins())

    surface.use(point.label, surface.Pair(ours, reference, step_copy), step)
    comparison.verdict()
