"""Both sides of a script of ``rpc-optimizer`` on one rank.

A rank has the parameters that it owns, the subjects that it built as their client, and the whole reference: all
ranks step all of it, and each compares the parameters that it owns. So nothing but what the subject itself sends
travels, except losses.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed.autograd as dist_autograd
from everyrank import current_world
from everyrank.suites.arena.subject_errors import subject_acts
from everyrank.suites.compare.comparison import EXACT, Comparison, check
from everyrank.suites.engine.subject import Subject
from everyrank.suites.moves.together import meet, reference_acts
from everyrank.suites.rpc_optimizer.arena import acting, check_step, globals_now
from everyrank.suites.rpc_optimizer.model import Model, Optimizer
from everyrank.suites.rpc_optimizer.optimizers import arguments, in_plain_torch
from everyrank.suites.rpc_optimizer.owners import (
    ALIKE,
    Datum,
    call,
    disown,
    gradient_was,
    input_of,
    loss_of,
    losses_and_values,
    mine,
    new_parameter,
    own,
    rrefs_of,
)
from everyrank.suites.rpc_optimizer.planted import forget

Data = Mapping[int, Datum]
Gradients = dict[torch.Tensor, torch.Tensor]


class Sides:
    """The objects of one script on this rank."""

    def __init__(self, subject: Subject, model: Model) -> None:
        self.subject, self.model, self.rank = subject, model, current_world().rank
        self.twins: list[torch.Tensor] = []
        for number, param in enumerate(model.params):
            self.twins.append(new_parameter(model, number) if param.same_as is None else self.twins[param.same_as])
        self.begin()
        self.references = [self.build_reference(made) for made in model.optimizers]
        self.ours: dict[int, Any] = {}
        """The subjects that this rank has built, by the numbers of their optimizers."""
        for number, made in enumerate(model.optimizers):
            if made.client == self.rank:
                self.ours[number] = self.build(made)

    def begin(self) -> None:
        """Make the parameters that this rank owns."""
        own(self.model)
        forget()
        acting[:] = [self.subject]
        meet(current_world(), "the parameters are made", "")  # from here on any rank may call any other
        self._globals = _process_now()

    def close(self) -> None:
        """Drop the subjects, so that no owner keeps what they refer to."""
        self.ours.clear()
        disown()

    # --- making --------------------------------------------------------------------------------------

    def build_reference(self, made: Optimizer, other_rate: bool = False) -> torch.optim.Optimizer:
        with reference_acts():
            return in_plain_torch(made, [self.twins[number] for number in made.params], other_rate)

    def build(self, made: Optimizer, other_rate: bool = False) -> Any:
        """Build a subject over these parameters."""
        kind, args, kwargs = arguments(made, other_rate)  # fresh: a tensor must not be shared
        with self.subject_acts():
            return self.build_over(kind, self.rrefs(made.params), *args, **kwargs)

    def build_over(self, kind: Any, rrefs: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        """Build a subject. Let its errors pass."""
        built = self.subject.build(kind, rrefs, *args, **kwargs)
        check_step(self.subject, built)
        return built

    def rrefs(self, numbers: Sequence[int]) -> list[Any]:
        """Return new RRefs of these parameters, from their owners."""
        asked = [(part, call(owner, rrefs_of, part)) for owner, part in self.by_owner(numbers).items()]
        found = {number: rref for part, answer in asked for number, rref in zip(part, answer(), strict=True)}
        return [found[number] for number in numbers]

    def by_owner(self, numbers: Iterable[int]) -> dict[int, list[int]]:
        """Return these parameters by their owners."""
        found: dict[int, list[int]] = {}
        for number in numbers:
            found.setdefault(self.model.params[number].owner, []).append(number)
        return found

    def name(self, number: int) -> str:
        return f"parameter {number} on worker{self.model.params[number].owner}"

    @contextlib.contextmanager
    def subject_acts(self) -> Iterator[None]:
        """Check that the subject raises nothing, and sets no warnings filter."""
        before = len(warnings.filters)
        with subject_acts():
            yield
        check(len(warnings.filters) == before, "the optimizer changed the warnings filters of its client")

    def both(self, number: int) -> list[torch.Tensor]:
        """Return the reference's parameter, and the subject's if this rank owns it."""
        return [self.twins[number], *([mine[number]] if number in mine else [])]

    # --- gradients -----------------------------------------------------------------------------------

    def used(self, missing: Sequence[int] = ()) -> list[int]:
        """Return what is in the loss: all that is trained but not missing, and what is frozen on the same owners."""
        params = list(enumerate(self.model.params))
        kept = [number for number, _ in params if self.twins[number].requires_grad and number not in missing]
        there = {self.model.params[number].owner for number in kept}
        frozen = [number for number, _ in params if not self.twins[number].requires_grad and number not in missing]
        return kept + [number for number in frozen if self.model.params[number].owner in there]

    def data(self, numbers: Sequence[int], number: int, linear: bool = False) -> Data:
        """Return the data of these parameters for a backward of this number, and what their losses are like."""
        return {
            each: (
                input_of(self.twins[each].shape, self.twins[each].dtype, number, self._seed_of(each)),
                "linear" if linear else self.model.params[each].gradient,
            )
            for each in numbers
        }

    def _seed_of(self, number: int) -> int:
        return ALIKE if self.model.params[number].alike == "all" else number

    def gradients(self, data: Data, times: int = 1) -> Gradients:
        """Return the gradients that the reference has of these data, after so many backwards."""
        for twin in self.twins:
            twin.grad = None
        if not data:
            return {}
        with reference_acts():
            total = torch.stack([loss_of(self.twins[number], *each) for number, each in data.items()]).sum()
            for left in reversed(range(times)):
                total.backward(retain_graph=bool(left))
        return {twin: twin.grad for twin in self.twins if twin.grad is not None}

    def remote_loss(self, data: Data) -> torch.Tensor:
        """Return the loss of these data, computed by the owners of their parameters."""
        return self.loss_and_values(data, ())[0]

    def loss_and_values(self, data: Data, watched: Sequence[int]) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
        """Return the loss of these data, and the values of what is watched: both with one call to each owner."""
        used, seen = self.by_owner(data), self.by_owner(watched)
        answers = [
            call(
                owner,
                losses_and_values,
                {number: data[number] for number in used.get(owner, ())},
                seen.get(owner, ()),
            )
            for owner in dict.fromkeys([*used, *seen])
        ]
        losses, values = zip(*(answer() for answer in answers), strict=True)
        return torch.cat(losses).sum(), {number: value for part in values for number, value in part.items()}

    def backward(self, context_id: int, data: Data, times: int = 1) -> torch.Tensor:
        """Run a backward of the loss of these data in a context, so many times; return the loss."""
        if not data:
            return torch.zeros(())
        total = self.remote_loss(data)
        for left in reversed(range(times)):
            dist_autograd.backward(context_id, [total], retain_graph=bool(left))
        return total.detach()

    def step_in_own_context(self, ours: Any, data: Data) -> None:
        """Do one step of a subject. Let its errors pass."""
        with dist_autograd.context() as context_id:
            self.backward(context_id, data)
            ours.step(context_id)

    def step_reference(self, by: int, gradients: Gradients, without: Sequence[int] = ()) -> None:
        """Step a reference with these gradients, but not the parameters of the owners in ``without``."""
        for number, twin in enumerate(self.twins):
            twin.grad = None if self.model.params[number].owner in without else gradients.get(twin)
        with reference_acts():
            self.references[by].step()

    # --- comparing -----------------------------------------------------------------------------------

    def compare(self) -> None:
        """Compare what this rank owns, bit for bit: the same kernels run on the same values."""
        comparison = Comparison(EXACT, self.subject.bound)
        comparison.step(
            0,
            {self.name(number): value.detach() for number, value in mine.items()},
            {self.name(number): self.twins[number].detach() for number in mine},
        )
        comparison.raise_first()
        for number, value in mine.items():
            name = self.name(number)
            frozen = "requires" if self.twins[number].requires_grad else "does not require"
            check(value.requires_grad == self.twins[number].requires_grad, f"{name} no longer {frozen} grad")
            done = "" if self.model.tensor(number) in self.model.given else gradient_was(number)
            check(not done, f"the .grad of {name}, which no optimizer was given, was {done}")
        now = _process_now()
        changed = [name for name, value in now.items() if value != self._globals[name]]
        self._globals = now
        check(not changed, f"the optimizer changed {', '.join(changed)} of worker{self.rank}")

    def on_owner(self, number: int, function: Callable[[int], Any]) -> Any:
        """Let the owner of a parameter do something with it."""
        return function(number) if number in mine else None


#: What global state of this process no optimizer may change. Grad mode and filters belong to a thread or a test.
def _process_now() -> dict[str, str]:
    without = ("the warnings filters", "the grad mode")
    return {name: value for name, value in globals_now().items() if name not in without}
