"""Both sides of a script of ``replicate`` on one rank: the subject's module, and the references beside it.

After each comparison the subject goes on from the reference's gradients, so steps are exact.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from everyrank.suites.arena.subject_errors import subject_acts
from everyrank.suites.compare.comparison import check, same
from everyrank.suites.compare.reference import SEED
from everyrank.suites.errors import Deviation
from everyrank.suites.moves.together import Rejected
from everyrank.suites.replicate.arena import LOCAL_BUFFERS, Arena, dense
from everyrank.suites.replicate.model import Model, batch, buffer_values, loss, make, packed
from everyrank.suites.replicate.twins import Twins
from torch import nn

_OPTIMIZERS: dict[str, Any] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.1),
}

#: The seed of a module into which a state is loaded: none of its values may stay.
FRESH = SEED + 50


class Sides:
    """The objects of one script on this rank: the subject's, and the references."""

    def __init__(self, arena: Arena, made_of: Model) -> None:
        self.arena, self.made_of = arena, made_of
        self.rank, self.size = arena.rank, arena.size
        self.equal = made_of.equal_at_once
        # What build is asked for counts more than what the subject does unasked.
        asked = {**made_of.build.options, **made_of.build.offers}
        self.local_buffers = not asked.get("broadcast_buffers", LOCAL_BUFFERS not in arena.subject.declares)
        self.frozen = {number for number, param in enumerate(made_of.params) if param.frozen}
        self.replaced = False
        self.kept: list[tuple[str, torch.Tensor, torch.Tensor]] = []
        """Gradients of the subject that the user has put by: the name, the tensor, and what it was then."""
        self.hooks: dict[int, list[Any]] = {}
        """The user's hooks on parameters, on all sides, by the number of the parameter."""
        self.when = ""
        """The time of now, for a text about a state."""
        self.begin(SEED)

    # --- objects -------------------------------------------------------------------------------------

    def begin(self, seed: int, number: int = 0) -> None:
        """Make a model with its own values on each rank, and references with the values that replicas must have."""
        self.hooks.clear()
        build = self.made_of.build
        twins = [self.model(seed, rank, number) for rank in range(self.size)]
        self.twins = Twins(twins, build.keeps, self.local_buffers)
        self.ours, self.replicas = build.on(self.arena, self.model(seed, self.rank, number))
        if self.made_of.built == "own-buffers":  # no law states the initial value of a buffer that is not sent
            for name, buffer in self.inside.named_buffers():
                buffer.copy_(self.twin.get_buffer(name))
        self.optimize()

    def model(self, seed: int, rank: int, number: int) -> nn.Module:
        """Return a fresh model of a rank, with values of its own."""
        model = make(self.made_of, seed if self.made_of.alike else seed + rank)
        for index, param in enumerate(self.made_of.params):
            model.get_parameter(param.name).requires_grad_(index not in self.frozen)
        for buffer in model.buffers():
            buffer.copy_(buffer_values(buffer, number, rank))
        return model

    def optimize(self) -> None:
        """Make a new optimizer over each model."""
        construct = _OPTIMIZERS[self.made_of.optimizer]
        self.optimizers = [construct(list(self.named(model).values())) for _, model in self.models]

    @property
    def twin(self) -> Any:
        """This rank's reference."""
        return self.twins.models[self.rank]

    @property
    def models(self) -> list[tuple[int, nn.Module]]:
        """All references, and last the subject's module, each with the rank whose data it gets."""
        return [*enumerate(self.twins.models), (self.rank, self.inside)]

    @property
    def inside(self) -> nn.Module:
        return self.arena.inside(self.ours)

    def named(self, model: nn.Module) -> dict[str, nn.Parameter]:
        """Return the parameters by the model's names; torch may list a tied one by its other name."""
        found = dict(self.arena.wrappers.parameters(model))
        for param in self.made_of.params:
            if param.name not in found and param.also in found:
                found[param.name] = found.pop(param.also)
        return found

    def param(self, model: nn.Module, number: int) -> nn.Parameter:
        """Return the parameter of this number."""
        return self.named(model)[self.made_of.params[number].name]

    @contextlib.contextmanager
    def acting(self) -> Iterator[None]:
        """Let the subject act. It may refuse to go on once a parameter was replaced."""
        try:
            with subject_acts():
                yield
        except Deviation as deviation:
            if self.replaced:
                raise Rejected(str(deviation)) from deviation
            raise

    # --- training ------------------------------------------------------------------------------------

    def train_twins(
        self, number: int, time: int, skips: Sequence[tuple[int, ...]], rowless: Sequence[int], synced: bool
    ) -> Any:
        """Run a backward on the references, each on the rows of its rank; return the rows and targets of this one."""
        parts = [batch(number, time, rank, rank in rowless) for rank in range(self.size)]
        self.twins.send_buffers()
        self.twins.train(parts, skips)
        if synced:
            self.twins.average()
        return parts[self.rank]

    def forward_twins(self, number: int) -> Any:
        """Run a forward on the references, as of a backward that raises; return the rows and targets of this rank."""
        parts = [batch(number, 0, rank) for rank in range(self.size)]
        self.twins.send_buffers()
        with torch.no_grad():
            for twin, (rows, _) in zip(self.twins.models, parts, strict=True):
                twin(rows)
        return parts[self.rank]

    def loss(self, rows: torch.Tensor, targets: torch.Tensor, skips: tuple[int, ...], packing: str) -> torch.Tensor:
        """Run a forward of the subject, and return the loss."""
        args, kwargs = packed(rows, packing)
        return loss(self.ours(*args, skips=skips, **kwargs), targets)

    def evaluate(self, number: int) -> None:
        """Run a forward in eval, without gradients, and compare what it returns."""
        self.twins.send_buffers()
        rows, _ = batch(number, 0, self.rank)
        with torch.no_grad(), self.acting():
            out = self.ours.eval()(rows)
        with torch.no_grad():
            self.same(out, self.twin.eval()(rows), "what the module returned in eval")
        self.ours.train()
        self.twin.train()

    def step(self) -> None:
        """Do one step of each optimizer."""
        for optimizer in self.optimizers:
            optimizer.step()

    def put_by(self) -> None:
        """Keep the gradients that there are as they are, and let the next backward make others."""
        for name, parameter in self.named(self.inside).items():
            if parameter.grad is not None and not parameter.grad.is_sparse:
                self.kept.append((name, parameter.grad.detach(), parameter.grad.detach().clone()))
        for _, model in self.models:
            model.zero_grad()

    # --- comparing -----------------------------------------------------------------------------------

    def compare(self) -> None:
        """Compare parameters, gradients and buffers. The subject then goes on from the reference's gradients."""
        if not self.equal:
            return
        twin, ours = self.named(self.twin), self.named(self.inside)
        check(set(ours) == set(twin), f"the parameters are {sorted(ours)} instead of {sorted(twin)}")
        for name, expected in twin.items():
            parameter = ours[name]
            same(parameter.detach(), expected.detach(), name)
            frozen = "requires" if expected.requires_grad else "does not require"
            check(parameter.requires_grad == expected.requires_grad, f"{name} no longer {frozen} grad")
            if name in self.twins.left and not self.twins.ignored(name) and parameter.grad is not None:
                self.twins.let_average(name, parameter.grad.detach(), self._bound)
            self._compare_gradient(name, parameter, expected)
        self.twins.left = set()
        for name, tensor, was in self.kept:
            same(tensor, was, f"the gradient of {name} that was put by")
        buffers = dict(self.inside.named_buffers())
        for name, buffer in self.twin.named_buffers():
            same(buffers[name], buffer, f"buffer {name}")

    def same(self, values: torch.Tensor, expected: torch.Tensor, name: str) -> None:
        """Compare what a move has found."""
        same(values, expected, name)

    def _compare_gradient(self, name: str, parameter: nn.Parameter, expected: nn.Parameter) -> None:
        have, want = ("None" if side.grad is None else "a gradient" for side in (parameter, expected))
        check(have == want, f"{name}.grad is {have} instead of {want}")
        if parameter.grad is None or expected.grad is None:
            return
        mine, wanted = dense(parameter.grad.detach()), dense(expected.grad)
        alike = mine.shape == wanted.shape and mine.dtype == wanted.dtype
        if not (alike and self.twins.close(name, mine, wanted, self._bound)):
            same(mine, wanted, f"{name}.grad")
        if parameter.grad.is_sparse or expected.grad.is_sparse:
            parameter.grad = expected.grad.clone()
        else:
            parameter.grad.detach().copy_(wanted)

    @property
    def _bound(self) -> float:
        bound = self.arena.subject.bound
        return bound.relative if bound is not None else 0.0
