"""The law of ``sharded-optimizer`` about tables of embeddings."""

from __future__ import annotations

from dataclasses import replace

from everyrank.suites.arena.points import OptimizerPoint
from everyrank.suites.compare.comparison import CLOSE_FP64
from everyrank.suites.sharded_optimizer import points
from everyrank.suites.sharded_optimizer.arena import Arena
from everyrank.suites.sharded_optimizer.contract import CONTRACT
from everyrank.suites.sharded_optimizer.law_player import playing
from everyrank.suites.sharded_optimizer.points import cut, whole


@CONTRACT.law("parity.embeddings", points.tables, groups=("AVERAGED",))
def embeddings(arena: Arena, point: OptimizerPoint) -> None:
    """Several tables of one shape have their own rows updated, by sparse gradients; one without a gradient stays.

    One table is whole, and each rank looks up its own rows in it: the gradient of a row is the sum over the ranks
    that looked it up, divided by the number of all ranks. If the subject declares `caller-syncs-whole`, the caller
    has averaged the gradients.
    """
    tables = [replace(table, table=True) for table in (cut(7, 3), cut(7, 3), whole(7, 3), cut(7, 3))]
    # A row's gradients may be added up before or after they are applied.
    with playing(arena, point, tables, tolerance=CLOSE_FP64) as player:
        for step in range(1, 5):
            # Some rows are also looked up by other ranks and in other tables and steps, and one twice.
            rows = tuple((step, step + 3, step + rank + 1, step) for rank in range(arena.size))
            player.train(missing=(step % 4,), rows=rows)  # each table has no gradient in one of the steps
