"""A step with a closure, of which no evaluation waits for another rank.

A subject with a bug may evaluate the closure more often on one rank than on another, and a closure that met the other
ranks would then wait for one that has left the step. So the reference goes first, and notes where it evaluates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from everyrank.suites.arena.subject_errors import subject_acts
from everyrank.suites.compare.comparison import EXACT, Comparison
from everyrank.suites.errors import Deviation
from everyrank.suites.sharded_optimizer.arena import Arena, Parameter


class Evaluations:
    """The evaluations of one step's closure: those of the reference, and then those of the subject on this rank.

    Before each of its own, the subject has to bring this rank's tensors to the values that the reference has there.
    The closure raises where it does not, and where it evaluates too often: ranks that go on could go on for ever.
    ``refuse`` raises what the closure raises, given its text. ``own``: whole parameters get another gradient on each
    rank, if the subject claims to average them.
    """

    def __init__(
        self,
        arena: Arena,
        trained: Sequence[Parameter],
        step: int,
        refuse: Callable[[str], NoReturn],
        own: bool = False,
    ) -> None:
        self.arena, self.trained, self.step, self.refuse = arena, trained, step, refuse
        self.own = own and arena.syncs
        self.counted = {"ours": 0, "torch.optim": 0}
        self.points: list[list[torch.Tensor]] = []
        """The values of the whole parameters at each evaluation of the reference."""
        self.problem: Deviation | None = None

    def of_reference(self) -> torch.Tensor:
        """Evaluate the closure for the reference, and note where."""
        self.counted["torch.optim"] += 1
        values = [param.twin.detach() for param in self.trained]
        self.points.append([value.clone() for value in values])
        return self._evaluate(values, of_twins=True)

    def let_step(self, ours: Any) -> Any:
        """Let the subject take its step, and return what it returns."""
        try:
            with subject_acts():
                loss = ours.step(self._of_subject)
        except Exception as error:
            # The subject may have told other ranks, and come back with an error of its own.
            if self.problem is not None:
                raise self.problem from error
            raise
        if self.problem is not None:
            raise self.problem
        return loss

    def _of_subject(self) -> torch.Tensor:
        self.counted["ours"] += 1
        try:
            values = self._wholes()
        except Deviation as problem:
            self.problem = self.problem or problem
            raise
        return self._evaluate(values)

    def _evaluate(self, values: Sequence[torch.Tensor], of_twins: bool = False) -> torch.Tensor:
        """Return the loss of the whole parameters, and set the gradients, as a user's closure does."""
        total = torch.zeros((), dtype=torch.float64)
        for param, value in zip(self.trained, values, strict=True):
            data = self.arena.data(param, self.step)
            # The loss is not quadratic and its curvature varies: another path of evaluations ends elsewhere.
            curve = 0.1 + 3.0 * data * data
            of_param = (value * data + 0.5 * curve * value**2 + 0.1 * value**4).sum()
            total = total + (of_param.real if of_param.is_complex() else of_param).to(torch.float64)
            slope = data + curve * value + 0.4 * value**3
            if self.own and param.whole:
                mean, mine = self.arena.own_gradient(param, self.step, slope)
                (param.twin if of_twins else param.pieces[0][0]).grad = mean if of_twins else mine
                continue
            for tensor, index in [(param.twin, ...)] if of_twins else param.pieces:
                tensor.grad = self.arena.alike(param, slope[index].clone())
        return total

    def _wholes(self) -> list[torch.Tensor]:
        """Return the whole parameters: this rank's tensors as they are, the others' as the reference has them."""
        number = self.counted["ours"]
        if number > len(self.points):
            self.refuse(self.count)
        comparison = Comparison(EXACT, self.arena.subject.bound)
        wholes = [value.clone() for value in self.points[number - 1]]
        for param, whole in zip(self.trained, wholes, strict=True):
            for name, (tensor, index) in param.named().items():
                comparison.step(number, {name: tensor.detach()}, {name: whole[index]})
                whole[index] = tensor.detach()
        if comparison.differences:
            off = str(comparison.differences[0]).partition(", ")[2]
            text = f"evaluation {number} of the closure is at other values than torch.optim's: {off}"
            self.refuse(f"{text}\n  wrong there: {', '.join(each.name for each in comparison.differences)}")
        return wholes

    @property
    def alike(self) -> bool:
        return self.counted["ours"] == self.counted["torch.optim"]

    @property
    def count(self) -> str:
        return f"the closure was evaluated so often: {self.counted}"
