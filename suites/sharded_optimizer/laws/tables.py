"""The law of ``sharded-optimizer`` about tables of embeddings."""

from __future__ import annotations

from everyrank.suites.arena.points import OptimizerPoint
from everyrank.suites.arena.subject_errors import subject_acts
from everyrank.suites.compare.comparison import CLOSE_FP64
from everyrank.suites.sharded_optimizer import points
from everyrank.suites.sharded_optimizer.arena import Arena, Spec
from everyrank.suites.sharded_optimizer.contract import CONTRACT
from everyrank.suites.sharded_optimizer.laws.sparse_gradients import give_rows, give_rows_of_ranks
from everyrank.suites.sharded_optimizer.laws.training import build_pair


def _looked_up(table: int, step: int, rank: int = 0) -> list[int]:
    """Return rows of a table of seven rows: some are also used by other tables, steps and ranks, and one twice."""
    return [(row + step) % 7 for row in (2 * table, 3, 2 * table + rank + 1, 2 * table)]


@CONTRACT.law("parity.embeddings", points.tables, groups=("AVERAGED",))
def embeddings(arena: Arena, point: OptimizerPoint) -> None:
    """Several tables of one shape have their own rows updated, by sparse gradients; one without a gradient stays.

    One table is whole, and each rank looks up its own rows in it: the gradient of a row is the sum over the ranks
    that looked it up, divided by the number of all ranks. If the subject declares `caller-syncs-whole`, the caller
    has averaged the gradients.
    """
    parameters = arena.make([Spec((7, 3)), Spec((7, 3)), Spec((7, 3), geometry=None), Spec((7, 3))])
    ours, reference = build_pair(arena, parameters, point)
    comparison = arena.comparison(CLOSE_FP64)  # a row's gradients may be added up before or after they are applied
    for step in range(1, 5):
        arena.give_gradients([], step)
        for param in parameters:
            if param.number == step % 4:
                continue  # each table has no gradient in one of the steps
            if param.whole and arena.syncs:
                ranks = [_looked_up(param.number, step, rank) for rank in range(arena.size)]
                give_rows_of_ranks(arena, param, step, ranks)
            else:
                give_rows(arena, param, step, _looked_up(param.number, step))
        with subject_acts():
            ours.step()
        reference.step()
        arena.compare(comparison, step)
    comparison.verdict()
