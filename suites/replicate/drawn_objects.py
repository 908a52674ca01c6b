"""The objects of a draw of ``replicate`` on one rank: make them and compare them with the references."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from everyrank import current_world
from everyrank.suites.arena.subject_errors import subject_acts
from everyrank.suites.compare.comparison import check, same
from everyrank.suites.compare.reference import SEED, mean
from everyrank.suites.engine.contract import Point
from everyrank.suites.engine.subject import Subject
from everyrank.suites.generate.player import DrawnObjects
from everyrank.suites.replicate import grammar as g
from everyrank.suites.replicate.arena import Arena, dense
from everyrank.suites.replicate.drawn_model import Part, Rows, buffer_values, loss, make
from torch import nn

#: How far a mean may be off, relative to the largest gradient in it: the order of a sum may differ.
_OFF = {torch.float64: 1e-12, torch.complex128: 1e-12, torch.float32: 1e-6}

_OPTIMIZERS: dict[str, Any] = {
    "SGD": lambda groups: torch.optim.SGD(groups, lr=0.1),
    "momentum": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9),
    "Adam": lambda groups: torch.optim.Adam(groups, lr=0.1),
}

_OPTIONS: dict[str, dict[str, Any]] = {
    "": {},
    "small-buckets": {"bucket_cap_mb": 0.0001},
    "bucket-view": {"gradient_as_bucket_view": True},
    "static-graph": {"static_graph": True},
    "device": {"device_id": torch.device("cpu")},
    "own-buffers": {"broadcast_buffers": False},
}

#: Options that a subject may refuse; then it builds without them.
_OFFERED = ("bucket_cap_mb", "gradient_as_bucket_view", "static_graph", "find_unused_parameters")


class ReplicateObjects(DrawnObjects):
    """The objects of one draw on this rank: the subject's, and the references."""

    def __init__(self, subject: Subject, draw: g.Draw) -> None:
        world = current_world()
        self.draw, self.rank, self.size = draw, world.rank, world.size
        self.arena = Arena(subject, Point("generated", world.size), world)
        self.local_buffers = self.arena.local_buffers or draw.option == "own-buffers"
        self.equal = draw.equal_at_once
        self.frozen = {number for number, param in enumerate(draw.params) if param.frozen}
        self.replaced = False
        self.scales: dict[str, float] = {}
        """For each mean of the last backward, the largest gradient in it."""
        self.begin(SEED)

    # --- objects -------------------------------------------------------------------------------------

    def begin(self, seed: int) -> None:
        """Make a model with its own values on each rank, and references with the values that replicas must have."""
        self.twins = [self._model(seed, rank) for rank in range(self.size)]
        for twin in self.twins[1:]:
            for name, parameter in twin.named_parameters():
                if not self.ignored(name):
                    parameter.data.copy_(self.twins[0].get_parameter(name).data)
        self.touched: list[set[str]] = [set() for _ in range(self.size)]
        self.send_buffers()
        self.replicas: list[nn.Module] = []
        self.ours = self._built(self._model(seed, self.rank))
        self.groups: list[tuple[int, int, float | None]] = [(0, self.draw.first, None)]
        self.optimize()

    def send_buffers(self) -> None:
        """Give the references rank 0's buffers, as a forward must, unless buffers stay local."""
        if not self.local_buffers:
            for twin in self.twins[1:]:
                for name, buffer in twin.named_buffers():
                    buffer.copy_(self.twins[0].get_buffer(name))

    def _model(self, seed: int, rank: int) -> Part:
        model = make(self.draw, seed + rank)
        for number, param in enumerate(self.draw.params):
            model.get_parameter(param.name).requires_grad_(number not in self.frozen)
        for buffer in model.buffers():
            buffer.copy_(buffer_values(buffer, self.number, rank))
        return model

    def _built(self, model: Part) -> nn.Module:
        if self.draw.apart:
            for name in model.parts:
                inside = model.get_submodule(name)
                model.add_module(name, self._build(inside))
            return model
        ignored = {"ignored_modules": [model.get_submodule(self.draw.ignored)]} if self.draw.ignored else {}
        return self._build(model, **ignored)

    def _build(self, module: nn.Module, **given: Any) -> nn.Module:
        options = {**given, **_OPTIONS[self.draw.option]}
        if self.draw.option != "static-graph" and any(
            isinstance(action, g.Backward) and action.skips for action in self.draw.actions
        ):
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
        if self.draw.option == "own-buffers":  # no law states the initial value of a buffer that is not sent
            for name, buffer in self.arena.inside(built).named_buffers():
                buffer.copy_(self.twin.get_buffer(name))
        self.replicas.append(built)
        return built

    def optimize(self) -> None:
        self.optimizers = [self._optimizer(model) for _, model in self.models]

    def _optimizer(self, model: nn.Module) -> Any:
        groups = [
            {"params": self.handed(model, start, end), **({} if rate is None else {"lr": rate})}
            for start, end, rate in self.groups
        ]
        return _OPTIMIZERS[self.draw.optimizer](groups)

    def handed(self, model: nn.Module, start: int, end: int) -> list[nn.Parameter]:
        named = self.named(model)
        drawn = [param.name for param in self.draw.params]
        layers = [parameter for name, parameter in named.items() if ".first." in f".{name}"] if start == 0 else []
        return [*(named[name] for name in drawn[start:end]), *layers]

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
        """Return the parameters by the draw's names; torch may list a tied one by its other name."""
        found = dict(self.arena.wrappers.parameters(model))
        for param in self.draw.params:
            if param.name not in found and param.also in found:
                found[param.name] = found.pop(param.also)
        return found

    def ignored(self, name: str) -> bool:
        return bool(self.draw.ignored) and name.startswith(f"{self.draw.ignored}.")

    # --- gradients of the references ------------------------------------------------------------------

    def train_twins(self, parts: Sequence[tuple[Rows, torch.Tensor]], skips: Sequence[tuple[int, ...]]) -> None:
        """Run a backward on the reference of each rank, with that rank's part of the batch and unused parameters."""
        for rank, twin in enumerate(self.twins):
            self._train_twin(rank, twin, parts[rank], skips[rank])

    def _train_twin(self, rank: int, twin: Part, part: tuple[Rows, torch.Tensor], skips: tuple[int, ...]) -> None:
        rows, targets = part
        before = {name: parameter.grad for name, parameter in twin.named_parameters()}
        for parameter in twin.parameters():
            parameter.grad = None
        loss(twin(rows, skips=skips), targets).backward()
        for name, parameter in twin.named_parameters():
            mine = parameter.grad
            if mine is not None:
                self.touched[rank].add(name)
                mine = mine.coalesce() if mine.is_sparse else mine
            earlier = before[name]
            parameter.grad = mine if earlier is None else earlier if mine is None else earlier + mine

    def average(self) -> None:
        """Average the gradients of each parameter that any rank has used since the last time."""
        self.scales = {}
        for name in set().union(*self.touched):
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
            self._compare_gradient(name, parameter, expected)
        buffers = dict(self.inside.named_buffers())
        for name, buffer in self.twin.named_buffers():
            same(buffers[name], buffer, f"buffer {name}")

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
