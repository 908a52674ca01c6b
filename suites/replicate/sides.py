"""Both sides of a script of ``replicate`` on one rank: the subject's module, and a plain model for each rank.

The reference needs no communication: every process has the models of all ranks, and takes the mean of their gradients
if a backward is synced. That is the gradient of the whole batch, since the loss counts each row the same. After each
comparison the subject goes on from the reference's gradients, so steps are exact.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from everyrank.suites.arena.subject_errors import subject_acts
from everyrank.suites.compare.comparison import check, same
from everyrank.suites.compare.reference import SEED, mean
from everyrank.suites.errors import Deviation
from everyrank.suites.moves.together import Rejected
from everyrank.suites.replicate.arena import Arena, dense
from everyrank.suites.replicate.model import PARTS, Model, Part, buffer_values, loss, make
from torch import nn

#: How far a mean may be off, relative to the largest gradient in it: the order of a sum may differ.
_OFF = {torch.float64: 1e-12, torch.complex128: 1e-12, torch.float32: 1e-6}

_OPTIMIZERS: dict[str, Any] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.1),
}

_OPTIONS: dict[str, dict[str, Any]] = {
    "small-buckets": {"bucket_cap_mb": 0.0001},
    "bucket-view": {"gradient_as_bucket_view": True},
    "static-graph": {"static_graph": True},
    "device": {"device_id": torch.device("cpu")},
    "own-buffers": {"broadcast_buffers": False},
}

#: Options that a subject may refuse; then it builds without them.
_OFFERED = ("bucket_cap_mb", "gradient_as_bucket_view", "static_graph", "find_unused_parameters")

#: The seed of a module into which a state is loaded: none of its values may stay.
FRESH = SEED + 50


class Sides:
    """The objects of one script on this rank: the subject's, and the references."""

    def __init__(self, arena: Arena, made_of: Model) -> None:
        self.arena, self.made_of = arena, made_of
        self.rank, self.size = arena.rank, arena.size
        self.local_buffers = arena.local_buffers or made_of.built == "own-buffers"
        self.equal = made_of.equal_at_once
        self.frozen = {number for number, param in enumerate(made_of.params) if param.frozen}
        self.replaced = False
        self.scales: dict[str, float] = {}
        """For each mean of the last backward, the largest gradient in it."""
        self.left: set[str] = set()
        """Parameters that no loss has used, whose gradients differ between ranks, since they were set by hand."""
        self.begin(SEED)

    # --- objects -------------------------------------------------------------------------------------

    def begin(self, seed: int, number: int = 0) -> None:
        """Make a model with its own values on each rank, and references with the values that replicas must have."""
        self.twins = [self._model(seed, rank, number) for rank in range(self.size)]
        for twin in self.twins[1:]:
            for name, parameter in twin.named_parameters():
                if not self.ignored(name):
                    parameter.data.copy_(self.twins[0].get_parameter(name).data)
        self.touched: list[set[str]] = [set() for _ in range(self.size)]
        self.send_buffers()
        self.replicas: list[nn.Module] = []
        self.ours = self._built(self._model(seed, self.rank, number))
        self.optimize()

    def send_buffers(self) -> None:
        """Give the references rank 0's buffers, as a forward must, unless buffers stay local."""
        if not self.local_buffers:
            for twin in self.twins[1:]:
                for name, buffer in twin.named_buffers():
                    buffer.copy_(self.twins[0].get_buffer(name))

    def _model(self, seed: int, rank: int, number: int) -> Part:
        model = make(self.made_of, seed + rank)
        for index, param in enumerate(self.made_of.params):
            model.get_parameter(param.name).requires_grad_(index not in self.frozen)
        for buffer in model.buffers():
            buffer.copy_(buffer_values(buffer, number, rank))
        return model

    def _built(self, model: Part) -> nn.Module:
        built = self.made_of.built
        if built == "apart":
            for name in PARTS:
                model.add_module(name, self._build(model.get_submodule(name)))
            return model
        return self._build(
            model, **({"ignored_modules": [model.get_submodule("inner")]} if built == "ignored" else {})
        )

    def _build(self, module: nn.Module, **given: Any) -> nn.Module:
        options = {**given, **_OPTIONS.get(self.made_of.built, {})}
        if self.made_of.asked:
            options["find_unused_parameters"] = True
        with subject_acts():
            while True:
                try:
                    built = self.arena.build(module, **options)
                    break
                except TypeError as error:
                    refused = [name for name in options if name in _OFFERED and name in str(error)]
                    if not refused:
                        raise
                    del options[refused[0]]
        if self.made_of.built == "own-buffers":  # no law states the initial value of a buffer that is not sent
            for name, buffer in self.arena.inside(built).named_buffers():
                buffer.copy_(self.twin.get_buffer(name))
        self.replicas.append(built)
        return built

    def optimize(self) -> None:
        """Make a new optimizer over each model."""
        construct = _OPTIMIZERS[self.made_of.optimizer]
        self.optimizers = [construct(list(self.named(model).values())) for _, model in self.models]

    @property
    def twin(self) -> Part:
        """This rank's reference."""
        return self.twins[self.rank]

    @property
    def models(self) -> list[tuple[int, nn.Module]]:
        """All references, and last the subject's module, each with the rank whose data it gets."""
        return [*enumerate(self.twins), (self.rank, self.inside)]

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

    def ignored(self, name: str) -> bool:
        return self.made_of.built == "ignored" and name.startswith("inner.")

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

    # --- gradients of the references ------------------------------------------------------------------

    def train_twins(
        self, parts: Sequence[tuple[torch.Tensor, torch.Tensor]], skips: Sequence[tuple[int, ...]]
    ) -> None:
        """Run a backward on the reference of each rank, with that rank's part of the batch and unused parameters."""
        for rank, twin in enumerate(self.twins):
            rows, targets = parts[rank]
            before = {name: parameter.grad for name, parameter in twin.named_parameters()}
            for parameter in twin.parameters():
                parameter.grad = None
            loss(twin(rows, skips=skips[rank]), targets).backward()
            for name, parameter in twin.named_parameters():
                mine, earlier = parameter.grad, before[name]
                if mine is not None:
                    self.touched[rank].add(name)
                    mine = mine.coalesce() if mine.is_sparse else mine
                parameter.grad = mine if earlier is None else earlier if mine is None else earlier + mine

    def average(self) -> None:
        """Average the gradients of each parameter that any rank has used since the last time."""
        self.scales = {}
        used = set().union(*self.touched)
        self.left = {name for name, parameter in self.twin.named_parameters() if parameter.requires_grad} - used
        for name in used:
            parameters = [twin.get_parameter(name) for twin in self.twins]
            if self.ignored(name) or not parameters[0].requires_grad:
                continue
            parts = [parameter.grad for parameter in parameters]
            sizes = [float(dense(part).abs().max()) for part in parts if part is not None and part.numel()]
            self.scales[name] = max(sizes, default=0.0)
            found = mean(parts)
            for parameter in parameters:
                parameter.grad = None if found is None else found.clone()
        self.touched = [set() for _ in range(self.size)]

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
            if name in self.left and not self.ignored(name) and parameter.grad is not None:
                self._let_average(name, parameter.grad.detach())
            self._compare_gradient(name, parameter, expected)
        self.left = set()
        buffers = dict(self.inside.named_buffers())
        for name, buffer in self.twin.named_buffers():
            same(buffers[name], buffer, f"buffer {name}")

    def _let_average(self, name: str, mine: torch.Tensor) -> None:
        """Average the references' gradients of a parameter that no loss has used, if the subject has done so.

        No contract says what happens to what a rank has set by hand: it may stay, or take part in the mean.
        """
        parts = [twin.get_parameter(name).grad for twin in self.twins]
        if all(part is not None and part.shape == mine.shape for part in parts):
            found = mean(parts)
            if found is not None and self._close(name, mine, found):
                for twin in self.twins:
                    twin.get_parameter(name).grad = found.clone()

    def _compare_gradient(self, name: str, parameter: nn.Parameter, expected: nn.Parameter) -> None:
        have, want = ("None" if side.grad is None else "a gradient" for side in (parameter, expected))
        check(have == want, f"{name}.grad is {have} instead of {want}")
        if parameter.grad is None or expected.grad is None:
            return
        mine, wanted = dense(parameter.grad.detach()), dense(expected.grad)
        if not (mine.shape == wanted.shape and mine.dtype == wanted.dtype and self._close(name, mine, wanted)):
            same(mine, wanted, f"{name}.grad")
        if parameter.grad.is_sparse or expected.grad.is_sparse:
            parameter.grad = expected.grad.clone()
        else:
            parameter.grad.detach().copy_(wanted)

    def _close(self, name: str, mine: torch.Tensor, wanted: torch.Tensor) -> bool:
        if not wanted.numel():
            return True
        bound = self.arena.subject.bound
        allowed = max(_OFF[wanted.dtype], bound.relative if bound is not None else 0.0)
        off = float((mine - wanted).abs().max())
        return off <= allowed * max(self.scales.get(name, 0.0), float(wanted.abs().max()))
