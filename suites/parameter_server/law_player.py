"""The player of the laws of ``parameter-server``: it makes one law's moves on a model of the table."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from everyrank.fixtures.models import MODELS, model_of
from everyrank.suites.compare.comparison import EXACT, Comparison
from everyrank.suites.engine.subject import Subject
from everyrank.suites.moves.player import LawPlayer, judged
from everyrank.suites.parameter_server.arena import Arena, Optimizer
from everyrank.suites.parameter_server.gradients import Gradients
from everyrank.suites.parameter_server.model import Model, Param
from everyrank.suites.parameter_server.moves_of_meetings import MeetingMoves
from everyrank.suites.parameter_server.points import ServerPoint, VariantPoint, optimizer, sgd
from everyrank.suites.parameter_server.reports import Report
from everyrank.suites.parameter_server.sides import Sides, Values
from torch import nn

#: Whose answers a law compares with the reference after each move.
Compared = Literal["first", "all", "nobody"]


@dataclass(frozen=True, kw_only=True)
class LawModel(Model):
    """A module of the table, what makes its optimizer, and the options of the server."""

    module: nn.Module
    made_by: Optimizer
    given: Mapping[str, Any]
    compared: Compared

    def make(self) -> tuple[nn.Module, list[int]]:
        return copy.deepcopy(self.module), list(range(len(self.params)))

    def make_optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        return self.made_by(parameters)

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.given)


class LawGradients(Gradients):
    """Those of a law: its wrong gradient is not the first."""

    def index_of(self, defect: str, param: int) -> int:
        """Return the last parameter but one: others could be applied before its gradient is seen."""
        return len(self._model.params) - 2


class LawSides(Sides):
    """Both sides of a law, and the comparison of all rounds: the first must not hide the next."""

    scripted = False
    gradients_of = LawGradients

    def __init__(self, subject: Subject, model: LawModel) -> None:
        super().__init__(subject, model)
        first, every = range(1), range(len(model.trainers))
        self.compared = {"first": first, "all": every, "nobody": ()}[model.compared]
        self.expected: Values = {}
        self.overwritten: set[int] = set()
        self.comparison = Comparison(EXACT, subject.bound)
        self.comparison.start(self.served.expected())

    def compare_answer(self, report: Report, expected: Values) -> None:
        self.expected = expected  # it is compared when the move is over

    def overwrite_answer(self, trainer: int) -> None:
        super().overwrite_answer(trainer)
        self.overwritten.add(trainer)

    def compare(self) -> None:
        """Compare the answers of the last round, but for those that were overwritten."""
        for trainer in self.compared if self.answers else ():
            if trainer not in self.overwritten:
                found = self.named(self.answers[trainer], self.expected)
                self.comparison.step(self.served.rounds, found, self.expected)

    def verdict(self) -> None:
        if self.compared:
            self.comparison.verdict()


class ServerLawPlayer(LawPlayer, MeetingMoves):
    """Makes the moves of one law of ``parameter-server``, on the server's rank alone."""

    sides: LawSides
    sides_of = LawSides

    @property
    def leads(self) -> bool:
        return True  # a law is called there alone, also in a process that is no rank


def playing(
    arena: Arena, point: ServerPoint, made_by: Optimizer | None = None, compared: Compared = "first", **options: Any
) -> AbstractContextManager[ServerLawPlayer]:
    """Give the player of a law at its point, and come to a verdict at the end.

    ``made_by`` makes the optimizer of a point that has none, by default SGD. ``options`` are those of the server.
    """
    module, sparse = MODELS["plain"].build(3), False
    if isinstance(point, VariantPoint):
        module, sparse = model_of(point.model).build(3, point.dtype), point.sparse
        made_by = optimizer(point.row, point.variant)
    model = LawModel(
        size=point.size,
        params=tuple(Param(name, tuple(each.shape), sparse=sparse) for name, each in module.named_parameters()),
        trainers=tuple(1 + trainer if point.size > 1 else None for trainer in range(point.trainers)),
        expires="timeout" in options,
        module=module,
        made_by=made_by or sgd(),
        given=options,
        compared=compared,
    )
    return judged(ServerLawPlayer(arena.subject, model))
