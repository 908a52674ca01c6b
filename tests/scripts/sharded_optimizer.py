"""Scripts of ``sharded-optimizer``: sparse gradients, and closures that ranks do not evaluate alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from everyrank import current_world
from everyrank.fixtures.exemplars.sharded_optimizer import ShardedOptimizer
from everyrank.fixtures.rogues.sharded_optimizer import steps
from everyrank.suites.moves.script import Script, call
from everyrank.suites.sharded_optimizer.model import Model, Param
from everyrank.suites.sharded_optimizer.subjects import EXEMPLAR, TORCH

from tests.drawn import Row, Scripts

ON_ALL_RANKS = ((0, 2), (1, 1), (2, 2))
#: One row of it is given a gradient. torch writes past the end of such a row, if its values are columns of a larger
#: tensor.
CUT_BY_COLUMNS = Param("p0", (5, 4), ((0, 1), (1, 2), (2, 1)), dim=1, table=True)
DECAYING = Script(Model(3, (Param("p0", (2,)),), variant="weight-decay"), (call("train", missing=(0,)),))

#: A printed test imports its subject by name.
SUMS = replace(EXEMPLAR, name="sums", build=steps.SumsForMean)
DECAYS = replace(EXEMPLAR, name="decays", build=steps.NoneIsZero)
MIXES = replace(EXEMPLAR, name="mixes", build=steps.MixesUpTables)


def _looked_up(*rows: tuple[int, ...], tables: int = 1, optimizer: str = "Adagrad") -> Script:
    """Return a script with one step, and tables of five rows: whole ones, if each rank looks up rows of its own."""
    cut = ON_ALL_RANKS if len(rows) == 1 else None
    params = tuple(Param(f"p{number}", (5, 2), cut, table=True) for number in range(tables))
    return Script(Model(3, params, optimizer, "lr"), (call("train", rows=rows),))


def rows_of(script: Script) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Yield the rows that all ranks look up in a move."""
    for each in script.moves:
        if "rows" in dict(each.arguments):
            yield dict(each.arguments)["rows"]


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


RIGHT = {
    **{
        f"rows in any order, {optimizer}, {number}": _looked_up(*rows, tables=tables, optimizer=optimizer)
        for optimizer in ("Adagrad", "SGD", "SparseAdam")
        for number, (rows, tables) in enumerate((([(4, 1, 4, 0)], 1), ([()], 2), ([(2, 0, 2), (), (2, 4)], 2)))
    },
    **{
        f"closures, {optimizer}, {subclass or 'plain'}": _with_closure(optimizer, subclass=subclass, times=2)
        for optimizer in ("SGD", "Adam", "LBFGS")
        for subclass in ("", "unchanged")
    },
    # The exemplar steps a copy in an unknown class: its own gradients stay, and a norm taken later is theirs.
    **{
        f"what a user's class makes of gradients, {step}": Script(
            Model(3, (Param("p0", (5,), ON_ALL_RANKS),), subclass="signed"), (call("give"), call(step), call("clip"))
        )
        for step in ("step", "step_with_closure")
    },
}

ROWS = r"^parity\.embeddings: move 1, train\(rows=.*\): on rank \d: p\d.*off by"
#: An evaluation at values that the reference did not have there.
ELSEWHERE = (
    r"on rank 0: evaluation 2 of the closure is at other values than torch\.optim's: p0, shard at \(0, 0\): off by"
)
TWICE = r"on rank 0: .*'ours': 2, 'torch.optim': 1"

WRONG: dict[str, tuple[Any, Script, str]] = {
    "rows that are lost": (steps.TakesLastOfRepeatedRows, _looked_up((0, 0)), ROWS),
    "rows that are mixed up": (steps.MixesUpTables, _looked_up((0,), tables=2), ROWS),
    "rows that are not divided": (steps.DividesByThoseWhoLookedUp, _looked_up((0,), (1, 2), (1,)), ROWS),
    "a rank evaluates once more": (
        EvaluatesOnceMoreOnOneRank,
        _with_closure("SGD"),
        r"on rank 0: raised RankError: on rank 1: .*'ours': 2, 'torch.optim': 1",
    ),
    "a rank evaluates alone": (
        EvaluatesOnOneRankOnly,
        _with_closure("SGD"),
        r"on rank 0: .*'ours': 0, 'torch.optim': 1",
    ),
    "all evaluate twice": (steps.EvaluatesTwice, _with_closure("SGD"), TWICE),
    # Ranks that search along a line of their own leave the step together.
    "lines of their own": (steps.KnowsExactClassesOnly, _with_closure("LBFGS", subclass="unchanged"), ELSEWHERE),
    "lines of their own, a rank without a shard": (
        steps.KnowsExactClassesOnly,
        _with_closure("LBFGS", ((1, 3), (0, 2)), subclass="unchanged"),
        r"on rank 0: raised RankError: on rank 2: IndexError",
    ),
    # It is reported even if the step ends well.
    "an evaluation at old values": (steps.EvaluatesOldShards, _with_closure("LBFGS"), ELSEWHERE),
    "a missing gradient": (
        steps.NoneIsZero,
        DECAYING,
        r"^grad\.none: move 1, train\(missing=\(0,\)\): on rank 0: p0: off by",
    ),
}

SCRIPTS = Scripts(
    exemplars=(EXEMPLAR,),
    draws=25,
    rows={
        **{name: Row(script) for name, script in RIGHT.items()},
        **{name: Row(script, build, text) for name, (build, script, text) in WRONG.items()},
        "one row of a table that is cut by columns": Row(
            Script(Model(3, (CUT_BY_COLUMNS,), variant="lr"), (call("train", rows=((0,),)),)), smoke=True
        ),
    },
    ledgers=(
        (
            TORCH,
            {"closures", "clipping", "errors", "saves and loads"},
            {"missing gradients", "sparse gradients", "repeated rows"},
        ),
    ),
    never=(
        (frozenset({"sparse gradients"}), lambda script: any(param.table for param in script.model.params)),
        (
            frozenset({"repeated rows"}),
            lambda script: any(list(rows) != sorted(set(rows)) for ranks in rows_of(script) for rows in ranks),
        ),
    ),
)
