"""The player of the laws of ``sharded-optimizer``: it makes one law's moves on the parameters of a point.

It finds all that differs, where the player of a script ends at the first: a law names each step that deviates.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import torch
from everyrank.fixtures.optimizers import row
from everyrank.suites.arena.points import OptimizerPoint
from everyrank.suites.compare.comparison import EXACT, Comparison, Tolerance, check
from everyrank.suites.engine.contract import Point
from everyrank.suites.moves.move import Move
from everyrank.suites.sharded_optimizer.arena import Arena
from everyrank.suites.sharded_optimizer.model import Model, Param
from everyrank.suites.sharded_optimizer.moves_of_states import StateMoves
from everyrank.suites.sharded_optimizer.sides import Sides

#: torch's fused kernels round the last, partial vector in another way, and a shard has another last vector.
_FUSED = Tolerance(relative=1e-15)

#: The moves that begin a step, and those that end one.
_BEGIN, _END = ("give", "train", "step_with_closure"), ("step", "train", "step_with_closure")


class LawPlayer(StateMoves):
    """Makes the moves of one law. A rank that deviates ends at once, and the arena lets all ranks end alike.

    Its number is that of the step.
    """

    def __init__(self, arena: Arena, model: Model, tolerance: Tolerance) -> None:
        super().__init__(arena.subject, model, arena)
        self.comparison = Comparison(tolerance, arena.subject.bound)
        self.compared = False
        self.late: list[str] = []
        """What did not hold besides values."""

    @functools.cached_property
    def sides(self) -> Sides:
        sides = Sides(self.arena, self.model, self.home)
        self.comparison.start(sides.values()[1])
        return sides

    def make(self, move: Move, act: Callable[[], None], arguments: Mapping[str, Any]) -> None:
        __tracebackhide__ = True
        self.number += move.name in _BEGIN
        act()
        if move.name in _END:
            self.compared = True
            self.comparison.step(self.number, *self.sides.values())

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
        # If a ledger says that a loss is lost, this hides nothing else.
        self.late += [] if holds else [f"step {self.number}: {text}"]

    def exchange(self, act: Callable[[], str]) -> list[str]:
        return self.arena.meet("the end of the sabotaged step", act())

    def refuse(self, text: str) -> NoReturn:
        self.conclude(self.comparison)
        super().refuse(f"step {self.number}, {text}")

    def verdict(self) -> None:
        """Raise what the comparison of all steps has found, or else what did not hold besides."""
        if self.compared:
            self.comparison.verdict()
            self.sides.check_frozen()
        check(not self.late, "\n  ".join(self.late))


@contextlib.contextmanager
def playing(
    arena: Arena,
    point: Point,
    params: Sequence[Param],
    dtype: torch.dtype = torch.float64,
    tolerance: Tolerance = EXACT,
    **fields: Any,
) -> Iterator[LawPlayer]:
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
    model = Model(point.size, named, optimizer, **given)
    player = LawPlayer(arena, model, tolerance)
    yield player
    player.verdict()
