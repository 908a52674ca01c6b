"""The player of the laws of ``rpc-optimizer``: rank 0 makes a law's moves, and the others own parameters."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
from everyrank.suites.arena.points import OptimizerPoint
from everyrank.suites.arena.subject_errors import subject_acts
from everyrank.suites.compare.comparison import EXACT, Comparison, same
from everyrank.suites.engine.subject import Subject
from everyrank.suites.errors import Deviation
from everyrank.suites.moves.move import Move
from everyrank.suites.moves.player import LawPlayer, judged
from everyrank.suites.rpc_optimizer.arena import Arena
from everyrank.suites.rpc_optimizer.model import Model, Optimizer, Param
from everyrank.suites.rpc_optimizer.moves_of_parts import PartMoves
from everyrank.suites.rpc_optimizer.owners import call, own, values_of
from everyrank.suites.rpc_optimizer.planted import on
from everyrank.suites.rpc_optimizer.sides import Data, Sides

Values = Mapping[str, torch.Tensor]


class LawSides(Sides):
    """Both sides of a law, at the driver, and the comparison of all steps: the first must not hide the next."""

    def __init__(self, subject: Subject, model: Model) -> None:
        self.every = range(len(model.params))
        self.comparison = Comparison(EXACT, subject.bound, keeps_first=True)
        self.awaited: tuple[int, Values] | None = None
        """The last step, and the reference's values after it: the subject's come with the next forward pass."""
        self.compared = True
        """Whether values are compared."""
        super().__init__(subject, model)
        self.comparison.start(self.expected)

    def begin(self) -> None:
        for wait in [call(owner, own, self.model) for owner in self.by_owner(self.every)]:
            wait()

    def subject_acts(self) -> AbstractContextManager[None]:  # type: ignore[override]
        self.compare()
        return subject_acts()

    def loss_and_values(self, data: Data, watched: Sequence[int]) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
        total, values = super().loss_and_values(data, watched if self.awaited is None else self.every)
        self._compare(values)
        return total, values

    def on_owner(self, number: int, function: Callable[[int], Any]) -> Any:
        return on(self.model.params[number].owner, function, number)

    # --- comparing -----------------------------------------------------------------------------------

    @property
    def expected(self) -> Values:
        return {self.name(number): twin.detach().clone() for number, twin in enumerate(self.twins)}

    @property
    def values(self) -> Values:
        """The values of all parameters on their owners."""
        answers = [call(owner, values_of, part) for owner, part in self.by_owner(self.every).items()]
        found = {number: value for answer in answers for number, value in answer().items()}
        return {self.name(number): found[number] for number in self.every}

    def stepped(self, number: int) -> None:
        """Note what the values are to be after a step."""
        self.compare()
        if self.compared:
            self.awaited = number, self.expected

    def verdict(self) -> None:
        self.compare()
        if self.compared:
            self.comparison.verdict()

    def compare(self) -> None:
        if self.awaited is not None:
            self.loss_and_values({}, ())

    def _compare(self, values: dict[int, torch.Tensor]) -> None:
        if self.awaited is not None:
            number, expected = self.awaited
            self.awaited = None
            self.comparison.step(number, {self.name(each): value for each, value in values.items()}, expected)


class RpcLawPlayer(LawPlayer, PartMoves):
    """Makes the moves of one law of ``rpc-optimizer``."""

    sides: LawSides
    sides_of = LawSides

    def find(self, move: Move) -> None:
        self.sides.stepped(self.number)

    def _step_while_held(self, owner: int, by: int, data: Data) -> list[Exception]:
        self.sides.compare()  # a deviation of the step before would be lost in the thread of this one
        return super()._step_while_held(owner, by, data)

    def step_that_moves(self, missing: tuple[int, ...] = ()) -> None:
        """Do a first step and check that it moves: otherwise laws about what must not move would hold."""
        before = self.sides.values
        self.step(missing=missing)
        after = self.sides.values
        for number in self.sides.used(missing):
            if torch.equal(after[self.sides.name(number)], before[self.sides.name(number)]):
                raise Deviation(f"a step with a gradient did not move {self.sides.name(number)}")

    @contextlib.contextmanager
    def unchanged(self, text: str, *numbers: int) -> Iterator[None]:
        """Check that these parameters, or all, do not change meanwhile. In the text, ``{}`` is a parameter's name."""
        before = self.sides.values
        yield
        after = self.sides.values
        for name in map(self.sides.name, numbers or self.sides.every):
            same(after[name], before[name], text.format(name))


def playing(
    arena: Arena,
    params: Sequence[Param],
    *optimizers: Optimizer,
    dtype: torch.dtype = torch.float64,
    compared: bool = True,
) -> AbstractContextManager[RpcLawPlayer]:
    """Give the player of a law on these parameters, and come to a verdict at the end.

    An optimizer without parameters is over all of them.
    """
    every = tuple(range(len(params)))
    made = tuple(replace(each, params=each.params or every) for each in optimizers)
    model = Model(arena.size, tuple(params), made, str(dtype).removeprefix("torch."))
    player = RpcLawPlayer(arena.subject, model)
    player.sides.compared = compared
    return judged(player)


def optimizer(name: str = "SGD", variant: str = "lr", **options: Any) -> Optimizer:
    """Return an optimizer over all parameters."""
    return Optimizer((), name, variant, **options)


def follow(
    arena: Arena, params: Sequence[Param], made: Optimizer, steps: int, dtype: torch.dtype = torch.float64
) -> Comparison:
    """Do these steps, and compare all parameters with the reference after each."""
    with playing(arena, params, made, dtype=dtype) as player:
        for _ in range(steps):
            player.step()
    return player.sides.comparison


def of_point(point: OptimizerPoint) -> Optimizer:
    """Return the optimizer of a point, over all parameters."""
    return optimizer(point.row.name, point.variant.name)
