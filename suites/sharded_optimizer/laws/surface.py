"""The law of ``sharded-optimizer`` about features of an optimizer besides its step."""

from __future__ import annotations

from collections.abc import Iterator

from everyrank.suites.arena import surface
from everyrank.suites.arena.points import SurfacePoint
from everyrank.suites.sharded_optimizer.arena import Arena
from everyrank.suites.sharded_optimizer.contract import CONTRACT
from everyrank.suites.sharded_optimizer.law_player import playing
from everyrank.suites.sharded_optimizer.points import cut


def _points() -> Iterator[SurfacePoint]:
    for part in surface.LABELS:
        yield SurfacePoint(part, 3, core=part == "all", part=part)


@CONTRACT.law("surface", _points)
def works_or_refuses(arena: Arena, point: SurfacePoint) -> None:
    """Schedulers, param_groups, step hooks, defaults, deepcopy and repr work as those of torch.optim, or raise."""
    with playing(arena, point, [cut(6, 3), cut(3, 2)], variant="momentum") as player:
        surface.use(point.part, player.pair, lambda number: player.train())
