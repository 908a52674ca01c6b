"""Drawn sequences of ``sharded-optimizer``: sparse gradients, and closures that ranks do not evaluate alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from everyrank import World, current_world
from everyrank.fixtures.exemplars.sharded_optimizer import ShardedOptimizer
from everyrank.fixtures.optimizers import row
from everyrank.fixtures.rogues.sharded_optimizer import steps
from everyrank.suites.engine.subject import Subject
from everyrank.suites.errors import Deviation
from everyrank.suites.generate.plan import SearchPlan
from everyrank.suites.generate.replay import replay
from everyrank.suites.generate.search import Search
from everyrank.suites.sharded_optimizer.grammar import GRAMMAR, Clip, Draw, Give, Param, Rows, Step
from everyrank.suites.sharded_optimizer.subjects import EXEMPLAR, TORCH

from tests.drawn import check_journey, drawn, hypothesis, left_out

EVERYTHING = frozenset(GRAMMAR.features)
ON_ALL_RANKS = ((0, 2), (1, 1), (2, 2))


def _subject(build: Any) -> Subject:
    return replace(EXEMPLAR, name=build.__name__, build=build)


# --- sparse gradients --------------------------------------------------------------------------------


def _looked_up(*tables: tuple[tuple[int, ...], ...], optimizer: str = "Adagrad") -> Draw:
    """Return a draw with one step, and tables of five rows: whole ones, if each rank looks up rows of its own."""
    rows = tuple(Rows(number, ranks) for number, ranks in enumerate(tables))
    own = any(len(ranks) > 1 for ranks in tables)
    cut = None if own else ON_ALL_RANKS
    params = tuple(Param(f"p{number}", (5, 2), cut, table=True) for number in range(len(tables)))
    return Draw(3, params, optimizer, (Give((), own, rows), Step()), variant="lr")


@pytest.mark.world(3)
@pytest.mark.parametrize("optimizer", ["Adagrad", "SGD", "SparseAdam"])
def test_rows_may_come_in_any_order_several_times_or_not_at_all(process_group: Any, optimizer: str) -> None:
    replay(EXEMPLAR, _looked_up(((4, 1, 4, 0),), ((),), optimizer=optimizer))
    replay(EXEMPLAR, _looked_up(((2, 0, 2), (), (2, 4)), ((1,), (0,), (3,)), optimizer=optimizer))


@pytest.mark.world(3)
@pytest.mark.parametrize(
    ("rogue", "draw"),
    [
        (steps.TakesLastOfRepeatedRows, _looked_up(((0, 0),))),
        (steps.MixesUpTables, _looked_up(((0,),), ((1,),))),
        (steps.DividesByThoseWhoLookedUp, _looked_up(((0,), (1, 2), (1,)))),
    ],
    ids=lambda value: getattr(value, "__name__", "draw"),
)
def test_rows_that_are_lost_mixed_up_or_not_divided_show(process_group: Any, rogue: Any, draw: Draw) -> None:
    replay(EXEMPLAR, draw)
    with pytest.raises(Deviation, match=r"action 2, Step\(closure=False\): on rank \d: p\d.*off by"):
        replay(_subject(rogue), draw)


@pytest.mark.smoke
@pytest.mark.world(3)
def test_one_row_of_a_table_cut_by_columns_reaches_that_row_alone(process_group: Any) -> None:
    """torch writes past the end of such a row, if its values are columns of a larger tensor."""
    table = Param("p0", (5, 4), ((0, 1), (1, 2), (2, 1)), dim=1, table=True)
    actions = (Give((), rows=(Rows(0, ((0,),)),)), Step())
    replay(EXEMPLAR, Draw(3, (table,), "SGD", actions, variant="lr"))


@hypothesis
@pytest.mark.world(3, timeout=300)
def test_a_bug_in_sparse_gradients_is_found(world: World, process_group: Any) -> None:
    found = Search(GRAMMAR, _subject(steps.MixesUpTables), EVERYTHING, world).run(SearchPlan(300, shrink=False))
    assert found.draw is not None
    assert sum(param.table for param in found.draw.params) > 1
    assert any(isinstance(action, Give) and len(action.rows) > 1 for action in found.draw.actions)


def _given(draws: list[Draw]) -> list[tuple[Draw, Rows]]:
    """Return the rows that are looked up, each with its draw."""
    return [
        (draw, rows) for draw in draws for action in draw.actions if isinstance(action, Give) for rows in action.rows
    ]


@hypothesis
@pytest.mark.world(2)
def test_tables_of_every_kind_are_drawn_with_optimizers_that_take_them(world: World) -> None:
    draws = drawn(GRAMMAR, EXEMPLAR, world, SearchPlan(100))
    check_journey(GRAMMAR, draws)
    given = _given(draws)
    assert {draw.optimizer for draw, _ in given} == {"Adagrad", "SGD", "SparseAdam"}
    assert {draw.params[rows.param].cut is None for draw, rows in given} == {True, False}
    looked_up = [rows for _, rows in given]
    assert any(() in rows.ranks and len(set(rows.ranks)) > 1 for rows in looked_up), "a rank looks up nothing"
    assert any(len(set(rank_rows)) < len(rank_rows) for rows in looked_up for rank_rows in rows.ranks), (
        "rows are repeated"
    )
    assert any(list(rank_rows) != sorted(rank_rows) for rows in looked_up for rank_rows in rows.ranks), (
        "rows are not sorted"
    )
    shared = [rows for rows in looked_up if len(rows.ranks) > 1 and set(rows.ranks[0]) & set(rows.ranks[1])]
    assert any(set(rows.ranks[0]) != set(rows.ranks[1]) for rows in shared), "ranks share some of their rows"
    for draw, rows in given:
        optimizer = row(draw.optimizer)
        assert "sparse" in optimizer.needs | optimizer.takes
        assert "sparse" not in optimizer.variant(draw.variant).refuses
        assert draw.params[rows.param].table
    for draw in draws:
        if "sparse" in row(draw.optimizer).needs:
            assert all(param.table for param in draw.params)


@hypothesis
@pytest.mark.world(2)
def test_what_a_ledger_states_of_sparse_gradients_is_not_drawn(world: World) -> None:
    assert not {"sparse gradients", "repeated rows"} & left_out(GRAMMAR, TORCH)
    none = drawn(GRAMMAR, EXEMPLAR, world, SearchPlan(50), EVERYTHING - {"sparse gradients"})
    assert not any(param.table for draw in none for param in draw.params)
    given = _given(drawn(GRAMMAR, EXEMPLAR, world, SearchPlan(50), EVERYTHING - {"repeated rows"}))
    assert given
    assert all(list(rank_rows) == sorted(set(rank_rows)) for _, rows in given for rank_rows in rows.ranks)


# --- closures ----------------------------------------------------------------------------------------


def _with_closure(optimizer: str, cut: Any = ON_ALL_RANKS, subclass: str = "", times: int = 1) -> Draw:
    params = (Param("p0", (sum(length for _, length in cut), 2), cut),)
    return Draw(3, params, optimizer, (Step(closure=True),) * times, subclass=subclass)


class EvaluatesOnceMoreOnOneRank(ShardedOptimizer):
    """It meets the other ranks in each step, but not in the evaluation that they do not have."""

    def evaluate(self, closure: Callable[[], Any]) -> Any:
        loss = super().evaluate(closure)
        if current_world().rank == 1:
            closure()
        return loss


class EvaluatesOnOneRankOnly(ShardedOptimizer):
    """The others take the gradients that they have."""

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        return super().step(closure if current_world().rank == 1 else None)

    def evaluate(self, closure: Callable[[], Any]) -> Any:
        return closure()


@pytest.mark.world(3)
@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "LBFGS"])
def test_the_exemplar_evaluates_where_torch_optim_does(process_group: Any, optimizer: str) -> None:
    replay(EXEMPLAR, _with_closure(optimizer, times=2))
    replay(EXEMPLAR, _with_closure(optimizer, subclass="unchanged", times=2))


@pytest.mark.world(3)
@pytest.mark.parametrize(
    ("rogue", "counts"),
    [
        (EvaluatesOnceMoreOnOneRank, r"on rank 0: raised RankError: on rank 1: .*'ours': 2, 'torch.optim': 1"),
        (EvaluatesOnOneRankOnly, r"on rank 0: .*'ours': 0, 'torch.optim': 1"),
        (steps.EvaluatesTwice, r"on rank 0: .*'ours': 2, 'torch.optim': 1"),
    ],
)
def test_ranks_that_evaluate_a_different_number_of_times_get_an_error_that_states_it(
    process_group: Any, rogue: Any, counts: str
) -> None:
    with pytest.raises(Deviation, match=counts):
        replay(_subject(rogue), _with_closure("SGD"))


#: An evaluation at values that the reference did not have there.
ELSEWHERE = r"on rank 0: evaluation 2 of the closure is at other values than torch\.optim's: p0: off by"


@pytest.mark.world(3)
@pytest.mark.parametrize(
    ("cut", "message"),
    [(ON_ALL_RANKS, ELSEWHERE), (((1, 3), (0, 2)), r"on rank 0: raised RankError: on rank 2: IndexError")],
    ids=["all ranks", "a rank without a shard"],
)
def test_ranks_that_search_along_a_line_of_their_own_leave_the_step_together(
    process_group: Any, cut: Any, message: str
) -> None:
    with pytest.raises(Deviation, match=message):
        replay(_subject(steps.KnowsExactClassesOnly), _with_closure("LBFGS", cut, subclass="unchanged"))


@pytest.mark.world(3)
def test_an_evaluation_at_old_values_is_reported_even_if_the_step_ends_well(process_group: Any) -> None:
    with pytest.raises(Deviation, match=ELSEWHERE):
        replay(_subject(steps.EvaluatesOldShards), _with_closure("LBFGS"))


@pytest.mark.world(3)
@pytest.mark.parametrize("closure", [False, True])
def test_what_a_class_of_the_user_makes_of_its_gradients_does_not_count(process_group: Any, closure: bool) -> None:
    """The exemplar steps a copy in an unknown class: its own gradients stay, and a norm taken later is theirs."""
    actions = (Give((0,)), Step(closure=closure), Clip(0.5, 2.0))
    replay(EXEMPLAR, Draw(3, (Param("p0", (5,), ON_ALL_RANKS),), "SGD", actions, subclass="signed"))
