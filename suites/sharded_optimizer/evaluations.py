"""A step with a closure, of which no evaluation waits for another rank.

A subject with a bug may evaluate the closure more often on one rank than on another, and a closure that met the other
ranks would then wait for one that has left the step. So the reference goes first, and notes where it evaluates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from everyrank.suites.arena.subject_errors import subject_acts
from everyrank.suites.compare.comparison import EXACT, Comparison, check
from everyrank.suites.errors import Deviation
from everyrank.suites.sharded_optimizer.arena import Arena, Parameter


class Evaluations:
    """The evaluations of one step's closure: those of the reference, and then those of the subject on this rank.

    Before each of its own, the subject has to bring this rank's tensors to the values that the reference has there.
    The closure raises where it does not, and where it evaluates too often: ranks that go on could go on for ever.
    """

    def __init__(self, arena: Arena, trained: Sequence[Parameter], step: int) -> None:
        self.arena, self.trained, self.step = arena, trained, step
        self.counted = {"ours": 0, "torch.optim": 0}
        self.points: list[list[torch.Tensor]] = []
        """The values of the whole parameters at each evaluation of the reference."""
        self.problem = ""

    def of_reference(self) -> Callable[[], torch.Tensor]:
        """Return the closure for the reference, which notes where it is evaluated."""
        evaluate = self.arena.closure(self.trained, self.step, of_twins=True)

        def note() -> torch.Tensor:
            self.counted["torch.optim"] += 1
            self.points.append([param.twin.detach().clone() for param in self.trained])
            return evaluate()

        return note

    def let_step(self, ours: Any) -> Any:
        """Let the subject take its step, and return what it returns."""
        try:
            with subject_acts():
                loss = ours.step(self._of_subject())
        except Exception as error:
            # The subject may have told other ranks, and come back with an error of its own.
            if self.problem:
                raise Deviation(self.problem) from error
            raise
        check(not self.problem, self.problem)
        check(self.counted["ours"] == self.counted["torch.optim"], self._count())
        return loss

    def _of_subject(self) -> Callable[[], torch.Tensor]:
        evaluate = self.arena.closure(self.trained, self.step, wholes=self._wholes)

        def count() -> torch.Tensor:
            self.counted["ours"] += 1
            return evaluate()

        return count

    def _wholes(self, parameters: Sequence[Parameter]) -> list[torch.Tensor]:
        """Return the whole parameters: this rank's tensors as they are, the others' as the reference has them."""
        number = self.counted["ours"]
        if number > len(self.points):
            self._refuse(self._count())
        comparison = Comparison(EXACT, self.arena.subject.bound)
        wholes = [value.clone() for value in self.points[number - 1]]
        for param, whole in zip(parameters, wholes, strict=True):
            for tensor, index in param.pieces:
                comparison.step(number, {param.name: tensor.detach()}, {param.name: whole[index]})
                whole[index] = tensor.detach()
        if comparison.differences:
            off = str(comparison.differences[0]).partition(", ")[2]
            self._refuse(f"evaluation {number} of the closure is at other values than torch.optim's: {off}")
        return wholes

    def _refuse(self, problem: str) -> None:
        self.problem = self.problem or problem
        raise Deviation(problem)

    def _count(self) -> str:
        return f"the closure was evaluated so often: {self.counted}"
