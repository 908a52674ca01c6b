"""The law of ``rpc-optimizer`` about features of an optimizer besides its step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed.autograd as dist_autograd
from everyrank.suites.arena import surface
from everyrank.suites.arena.points import SurfacePoint
from everyrank.suites.arena.subject_errors import subject_acts
from everyrank.suites.rpc_optimizer.arena import Arena, loss
from everyrank.suites.rpc_optimizer.besides import MORE, RpcPair
from everyrank.suites.rpc_optimizer.contract import CONTRACT

#: What a fresh optimizer is built with: what it loads must count.
_OTHER_ARGUMENTS = {"lr": 0.5, "momentum": 0.5}


def _points() -> Iterator[SurfacePoint]:
    for part in (*surface.LABELS, *MORE):
        yield SurfacePoint(part, 2, core=part == "all" or part in MORE, part=part)


@CONTRACT.law("surface", _points, groups=("STEPS",))
def works_or_refuses(arena: Arena, point: SurfacePoint) -> None:
    """Schedulers, hooks, state dicts, closures and the like work as those of torch.optim, or raise."""
    # The first of each owner have one shape, and the same number there.
    parameters = arena.own([(1, (3, 4)), (1, (2,)), (0, (3, 4))])
    comparison = arena.comparison()
    closures = 0

    def build(**arguments: Any) -> Any:
        with subject_acts():
            return arena.build(surface.OPTIMIZER, parameters, **arguments)

    def step_copy(other: Any) -> None:
        arena.step(other, parameters, surface.STEPS + 1)

    def step(number: int) -> None:
        arena.step(pair.ours, parameters, number)
        arena.reference_step(pair.reference, parameters, number)
        comparison.step(number, arena.values(), arena.twins())

    def backward(context_id: int) -> torch.Tensor:
        nonlocal closures
        closures += 1
        total = arena.remote_loss(parameters, arena.inputs(parameters, surface.STEPS + closures), loss)
        dist_autograd.backward(context_id, [total])
        return total.detach()

    def reference_step() -> None:
        arena.reference_step(pair.reference, parameters, surface.STEPS + closures)

    pair = RpcPair(
        build(**surface.ARGUMENTS),
        surface.OPTIMIZER([param.twin for param in parameters], **surface.ARGUMENTS),
        step_copy,
        fresh=lambda: build(**_OTHER_ARGUMENTS),
        backward=backward,
        reference_step=reference_step,
    )
    surface.use(point.part, pair, step, MORE)
    comparison.verdict()
