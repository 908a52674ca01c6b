"""The law of ``sharded-optimizer`` about the tables of embeddings."""

from __future__ import annotations

from everyrank.suites.acts import subject_acts
from everyrank.suites.compare import CLOSE_FP64
from everyrank.suites.contract import Point
from everyrank.suites.sharded_optimizer import points
from everyrank.suites.sharded_optimizer.arena import Arena, Spec
from everyrank.suites.sharded_optimizer.laws import CONTRACT, built
from everyrank.suites.sharded_optimizer.sparse_gradients import give_rows, give_rows_of_ranks


def _looked_up(table: int, step: int, rank: int = 0) -> list[int]:
    """Rows of a table of seven: some are looked up in other tables and steps and by other ranks too, one twice."""
    return [(row + step) % 7 for row in (2 * table, 3, 2 * table + rank + 1, 2 * table)]


@CONTRACT.law("parity.embeddings", points.tables)
def embeddings(place: Arena, point: Point) -> None:
    """Several tables of one shape get their own rows, by sparse gradients; a table without a gradient stays.

    One of them is whole, and looked up by each rank in rows of its own: the gradient of a row is the sum over the
    ranks that looked it up, divided by the number of all ranks. Where the subject declares `caller-syncs-whole`, the
    caller has averaged them.
    """
    parameters = place.make([Spec((7, 3)), Spec((7, 3)), Spec((7, 3), geometry=None), Spec((7, 3))])
    ours, reference = built(place, parameters, point)
    comparison = place.comparison(CLOSE_FP64)  # a row's gradients may be added up before they are applied, or after
    for step in range(1, 5):
        place.give_gradients([], step)
        for param in parameters:
            if param.number == step % 4:
                continue  # each has no gradient in one of the steps
            if param.whole and place.syncs:
                ranks = [_looked_up(param.number, step, rank) for rank in range(place.size)]
                give_rows_of_ranks(place, param, step, ranks)
            else:
                give_rows(place, param, step, _looked_up(param.number, step))
        with subject_acts():
            ours.step()
        reference.step()
        place.compare(comparison, step)
    comparison.verdict()
