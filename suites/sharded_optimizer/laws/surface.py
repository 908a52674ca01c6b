"""The law of ``sharded-optimizer`` about features of an optimizer besides its step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from everyrank.suites.arena import surface
from everyrank.suites.arena.points import SurfacePoint
from everyrank.suites.arena.subject_errors import subject_acts
from everyrank.suites.sharded_optimizer.arena import Arena, Spec
from everyrank.suites.sharded_optimizer.contract import CONTRACT


def _points() -> Iterator[SurfacePoint]:
    for part in surface.LABELS:
        yield SurfacePoint(part, 3, core=part == "all", part=part)


@CONTRACT.law("surface", _points)
def works_or_refuses(arena: Arena, point: SurfacePoint) -> None:
    """Schedulers, param_groups, step hooks, defaults, deepcopy and repr work as those of torch.optim, or raise."""
    parameters = arena.make([Spec((6, 3)), Spec((3, 2))])
    with subject_acts():
        ours = arena.build(surface.OPTIMIZER, parameters, **surface.ARGUMENTS)
    reference = surface.OPTIMIZER([param.twin for param in parameters], **surface.ARGUMENTS)
    comparison = arena.comparison()

    def step_copy(other: Any) -> None:
        other.step()

    def step(number: int) -> None:
        arena.give_gradients(parameters, number)
        with subject_acts():
            ours.step()
        reference.step()
        arena.compare(comparison, number)

    surface.use(point.part, surface.Pair(ours, reference, step_copy), step)
    comparison.verdict()
