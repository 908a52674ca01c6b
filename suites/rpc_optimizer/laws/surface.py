"""The law of ``rpc-optimizer`` about features of an optimizer besides its step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from everyrank.suites.arena import surface
from everyrank.suites.arena.points import SurfacePoint
from everyrank.suites.rpc_optimizer.arena import Arena
from everyrank.suites.rpc_optimizer.contract import CONTRACT
from everyrank.suites.rpc_optimizer.law_player import optimizer, playing
from everyrank.suites.rpc_optimizer.model import Param
from everyrank.suites.rpc_optimizer.optimizers import moved
from everyrank.suites.rpc_optimizer.parts import MORE, RpcPair
from everyrank.suites.rpc_optimizer.sides import Data

#: The first parameters of each owner have one shape, and the same number there.
PARAMS = [Param(1, (3, 4)), Param(1, (2,)), Param(0, (3, 4))]


def _points() -> Iterator[SurfacePoint]:
    for part in (*surface.LABELS, *MORE):
        yield SurfacePoint(part, 2, core=part == "all" or part in MORE, part=part)


@CONTRACT.law("surface", _points, groups=("STEPS",))
def works_or_refuses(arena: Arena, point: SurfacePoint) -> None:
    """Schedulers, hooks, state dicts, closures and the like work as those of torch.optim, or raise."""
    closures = 0
    with playing(arena, PARAMS, optimizer(variant="momentum")) as player:
        sides, (traits,) = player.sides, player.model.optimizers

        def later_data(steps: int) -> Data:
            return sides.data(sides.used(), surface.STEPS + steps)

        def step_copy(other: Any) -> None:
            with sides.subject_acts():
                sides.step_in_own_context(other, later_data(1))

        def step(number: int) -> None:
            sides.ours[0] = pair.ours
            player.step()

        def backward(context_id: int) -> torch.Tensor:
            nonlocal closures
            closures += 1
            return sides.backward(context_id, later_data(closures))

        pair = RpcPair(
            sides.ours[0],
            sides.references[0],
            step_copy,
            moved(traits),
            fresh=lambda: sides.build(replace(traits, variant="dampening"), other_rate=True),  # what it loads counts
            backward=backward,
            reference_step=lambda: sides.step_reference(0, sides.gradients(later_data(closures))),
        )
        surface.use(point.part, pair, step, MORE)
