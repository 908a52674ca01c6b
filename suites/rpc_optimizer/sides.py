"""Both sides of a script of ``rpc-optimizer`` on one rank.

A rank has the parameters that it owns, the subjects that it built as their client, and the whole reference: all
ranks step all of it, and each compares the parameters that it owns. So nothing but what the subject itself sends
travels, except losses.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from everyrank import current_world
from everyrank.suites.arena.subject_errors import noise, subject_acts
from everyrank.suites.compare.comparison import EXACT, Comparison, check
from everyrank.suites.engine.subject import Subject
from everyrank.suites.moves.together import meet, reference_acts
from everyrank.suites.rpc_optimizer.arena import (
    acting,
    call,
    check_step,
    globals_now,
    input_of,
    loss,
    repeated_sparse_loss,
    sparse_loss,
)
from everyrank.suites.rpc_optimizer.model import Model, Optimizer
from everyrank.suites.rpc_optimizer.optimizers import arguments, in_plain_torch
from everyrank.suites.rpc_optimizer.planted import forget

Gradients = dict[torch.Tensor, torch.Tensor]


class Sides:
    """The objects of one script on this rank."""

    def __init__(self, subject: Subject, model: Model) -> None:
        world = current_world()
        self.subject, self.model, self.rank = subject, model, world.rank
        self.twins: list[torch.Tensor] = []
        self.owned: dict[int, torch.Tensor] = {}
        """The parameters of this rank, by number."""
        self.left: dict[int, torch.Tensor] = {}
        """The gradients that this rank has set by hand on parameters of no optimizer, by number."""
        self._make_parameters()
        forget()
        acting[:], _sides[:] = [subject], [self]
        meet(world, "the parameters are made", "")  # from here on any rank may call any other
        self._globals = _process_now()
        self.references = [self.build_reference(made) for made in model.optimizers]
        self.ours: dict[int, Any] = {}
        """The subjects that this rank has built, by the numbers of their optimizers."""
        for number, made in enumerate(model.optimizers):
            if made.client == self.rank:
                self.ours[number] = self.build(made)

    def close(self) -> None:
        """Drop the subjects, so that no owner keeps what they refer to."""
        self.ours.clear()
        _sides.clear()

    # --- making --------------------------------------------------------------------------------------

    def _make_parameters(self) -> None:
        dtype: torch.dtype = getattr(torch, self.model.dtype)
        for number, param in enumerate(self.model.params):
            if param.same_as is None:
                value = noise(param.shape, dtype, torch.Generator().manual_seed(number))
                made = [_laid_out(value, param.layout, param.frozen) for _ in ("ours", "twin")]
            else:
                made = [self.owned.get(param.same_as, torch.empty(0)), self.twins[param.same_as]]
            self.twins.append(made[1])
            if param.owner == self.rank:
                self.owned[number] = made[0]

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
        found: dict[int, Any] = {}
        for owner in {self.model.params[number].owner for number in numbers}:
            mine = [number for number in numbers if self.model.params[number].owner == owner]
            found |= dict(zip(mine, rpc.rpc_sync(f"worker{owner}", rrefs_of, args=(mine,)), strict=True))
        return [found[number] for number in numbers]

    @contextlib.contextmanager
    def subject_acts(self) -> Iterator[None]:
        """Check that the subject raises nothing, and sets no warnings filter."""
        before = len(warnings.filters)
        with subject_acts():
            yield
        check(len(warnings.filters) == before, "the optimizer changed the warnings filters of its client")

    def both(self, number: int) -> list[torch.Tensor]:
        """Return the reference's parameter, and the subject's if this rank owns it."""
        return [self.twins[number], *([self.owned[number]] if number in self.owned else [])]

    # --- gradients -----------------------------------------------------------------------------------

    def used(self, missing: Sequence[int] = (), owners: Sequence[int] | None = None) -> list[int]:
        """Return what is in the loss: all that is trained but not missing, and what is frozen on the same owners."""
        params = list(enumerate(self.model.params))
        kept = [number for number, _ in params if self.twins[number].requires_grad and number not in missing]
        if owners is not None:
            kept = [number for number in kept if self.model.params[number].owner in owners]
        there = {self.model.params[number].owner for number in kept}
        return kept + [n for n, param in params if not self.twins[n].requires_grad and param.owner in there]

    def data(self, numbers: Sequence[int], number: int, linear: bool = False) -> dict[int, tuple[torch.Tensor, str]]:
        """Return the data of these parameters for a backward of this number, and what their losses are like."""
        return {
            each: (
                input_of(self.twins[each].shape, self.twins[each].dtype, 7, number, each),
                "linear" if linear else self.model.params[each].gradient,
            )
            for each in numbers
        }

    def gradients(self, data: dict[int, tuple[torch.Tensor, str]], times: int = 1) -> Gradients:
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

    def remote_loss(self, data: dict[int, tuple[torch.Tensor, str]]) -> torch.Tensor:
        """Return the loss of these data, computed by the owners of their parameters."""
        answers = []
        for owner in dict.fromkeys(self.model.params[number].owner for number in data):
            mine = {number: each for number, each in data.items() if self.model.params[number].owner == owner}
            answers.append(call(owner, losses_of, mine))
        return torch.cat([answer() for answer in answers]).sum()

    def backward(self, context_id: int, data: dict[int, tuple[torch.Tensor, str]], times: int = 1) -> torch.Tensor:
        """Run a backward of the loss of these data in a context, so many times; return the loss."""
        if not data:
            return torch.zeros(())
        total = self.remote_loss(data)
        for left in reversed(range(times)):
            dist_autograd.backward(context_id, [total], retain_graph=bool(left))
        return total.detach()

    def step_in_own_context(self, ours: Any, data: dict[int, tuple[torch.Tensor, str]]) -> None:
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
        names = {number: f"parameter {number} on worker{self.rank}" for number in self.owned}
        comparison.step(
            0,
            {name: self.owned[number].detach() for number, name in names.items()},
            {name: self.twins[number].detach() for number, name in names.items()},
        )
        comparison.raise_first()
        for number, name in names.items():
            own = self.owned[number]
            frozen = "requires" if self.twins[number].requires_grad else "does not require"
            check(own.requires_grad == self.twins[number].requires_grad, f"{name} no longer {frozen} grad")
            if self.model.tensor(number) not in self.model.given:
                self._check_gradient(number, f"the .grad of {name}, which no optimizer was given, was")
        now = _process_now()
        changed = [name for name, value in now.items() if value != self._globals[name]]
        self._globals = now
        check(not changed, f"the optimizer changed {', '.join(changed)} of worker{self.rank}")

    def _check_gradient(self, number: int, text: str) -> None:
        found, left = self.owned[number].grad, self.left.get(self.model.tensor(number))
        check(found is not None or left is None, f"{text} cleared")
        check(found is None or (left is not None and torch.equal(found, left)), f"{text} set")


#: What global state of this process no optimizer may change. Grad mode and filters belong to a thread or a test.
def _process_now() -> dict[str, str]:
    without = ("the warnings filters", "the grad mode")
    return {name: value for name, value in globals_now().items() if name not in without}


def _laid_out(value: torch.Tensor, layout: str, frozen: bool) -> torch.Tensor:
    """Return a leaf with this value in memory of this layout."""
    if layout == "transposed":
        held = value.t().contiguous().t()
    elif layout == "rows":
        held = torch.stack([value, value], 1)[:, 0]
    else:
        held = value.clone()
    return held.detach().requires_grad_(not frozen)


def loss_of(parameter: torch.Tensor, data: torch.Tensor, gradient: str) -> torch.Tensor:
    """Return the loss of one parameter with these data; its gradient is of this kind."""
    if gradient == "linear":  # a step leaves its graph usable
        complex_ = parameter.is_complex()
        flat, other = (torch.view_as_real(parameter), torch.view_as_real(data)) if complex_ else (parameter, data)
        return (flat * other).sum().to(torch.float64)
    kinds: dict[str, Callable[..., torch.Tensor]] = {"sparse": sparse_loss, "repeated": repeated_sparse_loss}
    found = kinds.get(gradient, loss)(parameter, data)
    return found * 0 if gradient == "zero" else found


# --- functions that run on the owners -------------------------------------------------------------------------

#: The objects of this rank's script, for calls of other ranks.
_sides: list[Sides] = []


def rrefs_of(numbers: Sequence[int]) -> list[Any]:
    return [rpc.RRef(_sides[0].owned[number]) for number in numbers]


def losses_of(data: dict[int, tuple[torch.Tensor, str]]) -> torch.Tensor:
    return torch.stack([loss_of(_sides[0].owned[number], *each) for number, each in data.items()])
