"""The law of ``parameter-server`` about reports that come before the last round is over.

Nothing here depends on how long anything takes. An update is halted halfway, and goes on when the late report's
call has returned, or when it waits for a lock of the server: a server may keep reports out during an update.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from everyrank.suites.errors import NotApplicable
from everyrank.suites.parameter_server import points
from everyrank.suites.parameter_server.arena import Arena
from everyrank.suites.parameter_server.contract import CONTRACT
from everyrank.suites.parameter_server.law_player import playing
from everyrank.suites.parameter_server.stopping import Updates

law = CONTRACT.law


class Halting(torch.optim.SGD):
    """Gradient descent that can stop when the first parameter is stepped and the others are not."""

    def __init__(self, parameters: Any, updates: Updates) -> None:
        super().__init__(parameters, lr=0.5)
        self.updates = updates

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for number, parameter in enumerate(group["params"]):
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad * group["lr"])
                if number == 0:
                    self.updates.begin()


@dataclass(frozen=True, kw_only=True)
class OverlapPoint(points.ServerPoint):
    """A point that fixes whether the report comes while the round before is updated, or while it is answered."""

    moment: Literal["updated", "answered"]


def _moments() -> Iterator[OverlapPoint]:
    for trainers in (2, 3):
        for moment in ("updated", "answered"):
            yield points.point(OverlapPoint, moment, trainers, core=trainers == 2, moment=moment)


@law("overlap", _moments)
def overlap(arena: Arena, point: OverlapPoint) -> None:
    """A report that comes while the round before is updated or answered counts once, in its own round.

    A trainer that has been answered may report at once, though others have not been answered yet. A report that comes
    earlier, while the model is updated, may be refused; then its trainer may report again when it has been answered.
    The answers of each round are of that round alone.
    """
    updates = Updates()
    with playing(arena, point, lambda given: Halting(given, updates), compared="all") as player:
        player.sides.updates = updates
        player.fill()
        if point.moment == "updated":
            player.overlap(last=point.trainers - 1, late=0)
        elif player.sides.served.blocks:
            raise NotApplicable("a server that blocks answers each trainer on a thread of its own")
        else:
            player.report_when_answered(trainer=0)
        player.fill()
        player.fill()
