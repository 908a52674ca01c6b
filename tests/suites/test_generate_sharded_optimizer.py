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
from everyrank.suites.moves.crossing import crossings, stored
from everyrank.suites.moves.data import encode
from everyrank.suites.moves.player import play_or_raise
from everyrank.suites.moves.script import Script, call
from everyrank.suites.options import SearchPlan
from everyrank.suites.sharded_optimizer.model import Model, Param
from everyrank.suites.sharded_optimizer.player import ShardedPlayer
from everyrank.suites.sharded_optimizer.subjects import EXEMPLAR, TORCH

from tests.drawn import drawn, hypothesis, left_out, search

EVERYTHING = frozenset(ShardedPlayer.features)
ON_ALL_RANKS = ((0, 2), (1, 1), (2, 2))


def _subject(build: Any) -> Subject:
    return replace(EXEMPLAR, name=build.__name__, build=build)


# --- sparse gradients --------------------------------------------------------------------------------


def _looked_up(*rows: tuple[int, ...], tables: int = 1, optimizer: str = "Adagrad") -> Script:
    """Return a script with one step, and tables of five rows: whole ones, if each rank looks up rows of its own."""
    cut = ON_ALL_RANKS if len(rows) == 1 else None
    params = tuple(Param(f"p{number}", (5, 2), cut, table=True) for number in range(tables))
    return Script(Model(3, params, optimizer, "lr"), (call("train", rows=rows),))


@pytest.mark.world(3)
@pytest.mark.parametrize("optimizer", ["Adagrad", "SGD", "SparseAdam"])
def test_rows_may_come_in_any_order_several_times_or_not_at_all(process_group: Any, optimizer: str) -> None:
    play_or_raise(EXEMPLAR, _looked_up((4, 1, 4, 0), optimizer=optimizer))
    play_or_raise(EXEMPLAR, _looked_up((), tables=2, optimizer=optimizer))
    play_or_raise(EXEMPLAR, _looked_up((2, 0, 2), (), (2, 4), tables=2, optimizer=optimizer))


@pytest.mark.world(3)
@pytest.mark.parametrize(
    ("rogue", "script"),
    [
        (steps.TakesLastOfRepeatedRows, _looked_up((0, 0))),
        (steps.MixesUpTables, _looked_up((0,), tables=2)),
        (steps.DividesByThoseWhoLookedUp, _looked_up((0,), (1, 2), (1,))),
    ],
    ids=lambda value: getattr(value, "__name__", "script"),
)
def test_rows_that_are_lost_mixed_up_or_not_divided_show(process_group: Any, rogue: Any, script: Script) -> None:
    play_or_raise(EXEMPLAR, script)
    with pytest.raises(Deviation, match=r"^parity\.embeddings: move 1, train\(rows=.*\): on rank \d: p\d.*off by"):
        play_or_raise(_subject(rogue), script)


@pytest.mark.smoke
@pytest.mark.world(3)
def test_one_row_of_a_table_cut_by_columns_reaches_that_row_alone(process_group: Any) -> None:
    """torch writes past the end of such a row, if its values are columns of a larger tensor."""
    table = Param("p0", (5, 4), ((0, 1), (1, 2), (2, 1)), dim=1, table=True)
    play_or_raise(EXEMPLAR, Script(Model(3, (table,), variant="lr"), (call("train", rows=((0,),)),)))


@hypothesis
@pytest.mark.world(3, timeout=300)
def test_a_bug_in_sparse_gradients_is_found(world: World, process_group: Any) -> None:
    found = search(_subject(steps.MixesUpTables), world, 300, shrink=False)
    assert found.draw is not None
    assert sum(param.table for param in found.draw.model.params) > 1


def _rows(scripts: list[Script]) -> list[tuple[Model, tuple[tuple[int, ...], ...]]]:
    """Return the rows that are looked up, each with its model."""
    calls = [(script.model, dict(each.arguments)) for script in scripts for each in script.moves]
    return [(model, given["rows"]) for model, given in calls if "rows" in given]


@hypothesis
@pytest.mark.world(2)
def test_tables_of_every_kind_are_drawn_with_optimizers_that_take_them(world: World) -> None:
    scripts = drawn(EXEMPLAR, world, SearchPlan(100))
    assert [ShardedPlayer.read(encode(script)) for script in scripts] == scripts
    given = _rows(scripts)
    assert {model.optimizer for model, _ in given} == {"Adagrad", "SGD", "SparseAdam"}
    assert {param.cut is None for model, _ in given for param in model.params if param.table} == {True, False}
    alone = [rows for _, ranks in given for rows in ranks]
    assert any(len(set(rows)) < len(rows) for rows in alone), "rows are repeated"
    assert any(list(rows) != sorted(rows) for rows in alone), "rows are not sorted"
    assert any(() in ranks and len(set(ranks)) > 1 for _, ranks in given), "a rank looks up nothing"
    for model, _ in given:
        optimizer = row(model.optimizer)
        assert "sparse" in optimizer.needs | optimizer.takes
        assert "sparse" not in optimizer.variant(model.variant).refuses
    for script in scripts:
        if "sparse" in row(script.model.optimizer).needs:
            assert all(param.table for param in script.model.params)


@hypothesis
@pytest.mark.world(2)
def test_what_a_ledger_states_of_sparse_gradients_is_not_drawn(world: World) -> None:
    assert not {"sparse gradients", "repeated rows"} & left_out(TORCH)
    none = drawn(EXEMPLAR, world, SearchPlan(50), EVERYTHING - {"sparse gradients"})
    assert not any(param.table for script in none for param in script.model.params)
    given = _rows(drawn(EXEMPLAR, world, SearchPlan(50), EVERYTHING - {"repeated rows"}))
    assert given
    assert all(list(rows) == sorted(set(rows)) for _, ranks in given for rows in ranks)


# --- closures ----------------------------------------------------------------------------------------


def _with_closure(optimizer: str, cut: Any = ON_ALL_RANKS, subclass: str = "", times: int = 1) -> Script:
    params = (Param("p0", (sum(length for _, length in cut), 2), cut),)
    return Script(Model(3, params, optimizer, subclass=subclass), (call("step_with_closure"),) * times)


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
    play_or_raise(EXEMPLAR, _with_closure(optimizer, times=2))
    play_or_raise(EXEMPLAR, _with_closure(optimizer, subclass="unchanged", times=2))


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
        play_or_raise(_subject(rogue), _with_closure("SGD"))


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
        play_or_raise(_subject(steps.KnowsExactClassesOnly), _with_closure("LBFGS", cut, subclass="unchanged"))


@pytest.mark.world(3)
def test_an_evaluation_at_old_values_is_reported_even_if_the_step_ends_well(process_group: Any) -> None:
    with pytest.raises(Deviation, match=ELSEWHERE):
        play_or_raise(_subject(steps.EvaluatesOldShards), _with_closure("LBFGS"))


@pytest.mark.world(3)
@pytest.mark.parametrize("closure", [False, True])
def test_what_a_class_of_the_user_makes_of_its_gradients_does_not_count(process_group: Any, closure: bool) -> None:
    """The exemplar steps a copy in an unknown class: its own gradients stay, and a norm taken later is theirs."""
    moves = (call("give"), call("step_with_closure" if closure else "step"), call("clip"))
    play_or_raise(EXEMPLAR, Script(Model(3, (Param("p0", (5,), ON_ALL_RANKS),), subclass="signed"), moves))


# --- crossings ---------------------------------------------------------------------------------------


def test_the_crossings_are_those_in_their_file() -> None:
    kept = [crossing for crossing, full in stored(ShardedPlayer) if not full]
    assert kept == crossings(ShardedPlayer).scripts, "python -m everyrank.suites.moves"
