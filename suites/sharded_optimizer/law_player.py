"""The player of the laws of ``sharded-optimizer``: it makes one law's moves on the parameters of a point."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, NoReturn

import torch
from everyrank.fixtures.optimizers import row
from everyrank.suites.arena.points import OptimizerPoint
from everyrank.suites.compare.comparison import EXACT, Comparison, Tolerance
from everyrank.suites.engine.contract import Point
from everyrank.suites.moves.move import Move
from everyrank.suites.moves.player import LawPlayer, judged
from everyrank.suites.sharded_optimizer.arena import Arena
from everyrank.suites.sharded_optimizer.home import Home
from everyrank.suites.sharded_optimizer.model import Model, Param
from everyrank.suites.sharded_optimizer.moves_of_states import StateMoves
from everyrank.suites.sharded_optimizer.sides import Sides

#: torch's fused kernels round the last, partial vector in another way, and a shard has another last vector.
_FUSED = Tolerance(relative=1e-15)

#: The moves that begin a step, and those that end one.
_BEGIN, _END = ("give", "train", "step_with_closure"), ("step", "train", "step_with_closure")


class LawSides(Sides):
    """Both sides of a law, and the comparison of all steps: the first must not hide the next."""

    compared = False

    def __init__(self, arena: Arena, made_of: Model, home: Home | None, tolerance: Tolerance) -> None:
        super().__init__(arena, made_of, home)
        self.comparison = Comparison(tolerance, arena.subject.bound)
        self.comparison.start(self.values()[1])

    def stepped(self, number: int) -> None:
        self.compared = True
        self.comparison.step(number, *self.values())

    def verdict(self) -> None:
        if self.compared:
            self.comparison.verdict()
            self.check_frozen()


class ShardedLawPlayer(LawPlayer, StateMoves):
    """Makes the moves of one law of ``sharded-optimizer``. Its number is that of the step."""

    def __init__(self, arena: Arena, model: Model, tolerance: Tolerance) -> None:
        super().__init__(arena.subject, model, arena)
        self.tolerance = tolerance

    @functools.cached_property
    def sides(self) -> LawSides:
        return LawSides(self.arena, self.model, self.home, self.tolerance)

    def counts(self, move: Move) -> bool:
        return move.name in _BEGIN

    def find(self, move: Move) -> None:
        if move.name in _END:
            self.sides.stepped(self.number)

    def follow(self, times: int, **given: Any) -> None:
        """Take steps as the optimizer needs them: with a closure, or on the first, the last and a further row."""
        model = self.model
        for _ in range(times):
            if "closure" in row(model.optimizer).needs:
                self.step_with_closure()
                continue
            rows = ((-1, 0, self.number + 1),) if any(param.table for param in model.params) else ()
            self.train(rows=rows, **given)

    def conclude(self, comparison: Comparison) -> None:
        if comparison.differences:
            comparison.verdict()

    def check(self, holds: bool, text: str) -> None:
        super().check(holds, f"step {self.number}: {text}")

    def exchange(self, act: Callable[[], str]) -> list[str]:
        return self.arena.meet("the end of the sabotaged step", act())

    def refuse(self, text: str) -> NoReturn:
        self.conclude(self.sides.comparison)
        super().refuse(f"step {self.number}, {text}")


def playing(
    arena: Arena,
    point: Point,
    params: Sequence[Param],
    dtype: torch.dtype = torch.float64,
    tolerance: Tolerance = EXACT,
    **fields: Any,
) -> AbstractContextManager[ShardedLawPlayer]:
    """Give the player of a law over these parameters, and come to a verdict at the end.

    The optimizer is that of the point, if it has one. ``fields`` are further ones of the model.
    """
    optimizer, variant, sparse = "SGD", "everything", False
    if isinstance(point, OptimizerPoint):
        optimizer, variant, sparse = point.optimizer, point.variant.name, "sparse" in point.row.needs
        tolerance = _FUSED if point.variant.arguments.get("fused", False) else tolerance
    named = tuple(
        replace(param, name=param.name or f"layer{number}.weight", table=param.table or sparse)
        for number, param in enumerate(params)
    )
    given = {"variant": variant, "first": len(named), "dtype": str(dtype).removeprefix("torch."), **fields}
    return judged(ShardedLawPlayer(arena, Model(point.size, named, optimizer, **given), tolerance))
