"""The models of scripts of ``trainer``: a chain of layers, to whose output every other parameter adds a term."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from everyrank.fixtures.models import fill
from everyrank.fixtures.optimizers import Row, Variant, row
from everyrank.suites.moves.model import Param as Param
from everyrank.suites.moves.model import add_parameters
from everyrank.suites.trainer.batches import Microbatch
from everyrank.suites.trainer.generators import Generators, generator_of, noisy
from torch import nn

#: How many numbers the model takes and returns for a row, the rows of a microbatch, and those of an embedding.
FEATURES, WIDTH, ROWS, VOCABULARY = 4, 2, 4, 3

#: What the sign of a gradient that cancels comes from: the first column of the inputs, on each rank.
_SIGNS = (1.0, -1.0)

#: Values at the edges of a dtype, which a model may have at the start: no arithmetic gives them back.
_EDGES = (-0.0, 2.0**-1060)

#: Parameters with more elements get one factor for each, not one for each and each row.
_LARGE = 4096


@dataclass(frozen=True)
class Group:
    """The next parameters in a group, with its own options, if any; the first group has the layers too."""

    count: int
    lr: float | None = None
    weight_decay: float | None = None
    tensor: bool = field(default=False, repr=False)
    """Whether its rate is a tensor, its own one, whatever those of other groups are."""


@dataclass(frozen=True)
class Step:
    """How a step is done: see ``TrainerPlayer.step``."""

    parts: int = 1
    max_norm: float | None = None
    """None does not clip; 0 leaves nothing of the gradients."""
    skips: tuple[int, ...] = ()
    skipped_by: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()
    spoiled: str = ""
    by: int = 0
    skips_in: tuple[int, ...] = ()
    """The microbatches that skip parameters; without one all do."""
    used: frozenset[int] = frozenset()
    """The unused parameters that are used by now."""
    by_turns: bool = False
    """Whether each rank skips another one of these parameters, and no rank all."""
    parts_on: tuple[int, ...] = ()
    """How many microbatches each rank has, if not all have ``parts``."""

    def number_on(self, index: int) -> int:
        """Return how many microbatches this rank has."""
        return self.parts_on[index] if self.parts_on else self.parts

    def prepared(
        self, batches: Iterable[Microbatch], skip: Callable[[tuple[int, ...]], None], index: int
    ) -> Sequence[Microbatch]:
        """Return these microbatches of a part; before its forward each lets the model skip what it does not use."""
        skips = [self.skipped_on(index) if part in self.skips_in else () for part in range(self.number_on(index))]
        return [
            replace(batch, prepare=functools.partial(skip, skipped))
            for batch, skipped in zip(batches, skips, strict=True)
        ]

    def skipped_on(self, index: int) -> tuple[int, ...]:
        """Return the parameters that this rank does not use."""
        if self.skipped_by and index not in self.skipped_by:
            return ()
        return (self.skips[index % len(self.skips)],) if self.by_turns else self.skips


@dataclass(frozen=True)
class Model:
    """A model, the differences between the ranks at the start, and an optimizer with its groups."""

    size: int
    layers: tuple[int, ...] = ()
    """The widths between the linear layers; without one there is one layer."""
    params: tuple[Param, ...] = ()
    last: bool = field(default=False, repr=False)
    """Whether the layers are registered after the parameters."""
    bare: bool = field(default=False, repr=False)
    """Whether only the biases of the layers are trained: their weights are frozen."""
    buffer: bool = False
    optimizer: str = "SGD"
    variant: str = "lr"
    groups: tuple[Group, ...] = ()
    """The groups that the trainer is built with; without one it is built without groups."""
    own_values: bool = False
    """Whether each rank has built other parameters; those of rank 0 count."""
    own_buffer: bool = False
    reordered: tuple[int, ...] = ()
    """Ranks that have registered their parameters in the opposite order."""
    edges: bool = field(default=False, repr=False)
    """Whether the first elements of each parameter are -0.0 and a subnormal number at the start."""
    counts: bool = field(default=False, repr=False)
    """Whether each forward changes the buffer."""
    equal: bool = field(default=False, repr=False)
    """Whether all elements of all parameters are equal at the start."""
    watched: bool = field(default=False, repr=False)
    """Whether the user asks for the state after each move, and makes nothing of it."""
    saves_some: bool = field(default=False, repr=False)
    """Whether a state is saved before all parameters are in a group."""
    draws: bool = field(default=False, repr=False)
    """Whether each forward draws random numbers."""
    losses: bool = True
    """Whether the loss that a step returns is compared."""
    options: bool = True
    """Whether the options of groups are compared."""

    @property
    def row(self) -> Row:
        return row(self.optimizer)

    @property
    def choice(self) -> Variant:
        return self.row.variant(self.variant)

    def build(self, seed: int, frozen: Iterable[int]) -> nn.Module:
        """Return a fresh module with these parameters frozen; equal seeds give equal values."""
        return make(self, seed, frozen)

    def batches(self, module: Any, step: Step, number: int, time: int, index: int) -> Sequence[Microbatch]:
        """Return the microbatches of a part, for a module which then skips what it skips on that part."""
        module.skips, module.used = step.skipped_on(index), step.used
        found = microbatches(step, number, time, index)
        if step.skips_in:
            found = step.prepared(found, functools.partial(setattr, module, "skips"), index)
        return [signed(batch, index) for batch in found] if any(param.cancels for param in self.params) else found

    def drawing(self, part: int, generators: Generators) -> AbstractContextManager[None]:
        """Let the forwards of a part go on with its generator, if they draw."""
        return generator_of(part, generators) if self.draws else contextlib.nullcontext()

    def named(self, groups: Sequence[Group], first: Mapping[str, str]) -> list[dict[str, Any]]:
        """Return the first groups of a training with the names of their parameters, each the first one it has."""
        found = []
        start = 0
        for number, group in enumerate(groups):
            end = start + group.count
            rate = torch.tensor(group.lr, dtype=torch.float64) if group.tensor else group.lr
            options = {"lr": rate, "weight_decay": group.weight_decay}
            given = {name: value for name, value in options.items() if value is not None}
            layers = [] if number else layer_names(self)
            found.append({"params": [*layers, *(first[param.name] for param in self.params[start:end])], **given})
            start = end
        return found


class Trained(nn.Module):
    """The module of a model. Its forward follows the model, so that the order of registration makes no difference."""

    def __init__(self, made_of: Model) -> None:
        super().__init__()
        self.made_of = made_of
        self.skips: tuple[int, ...] = ()
        """The parameters that the next forwards do not use."""
        self.used: frozenset[int] = frozenset()
        """The unused parameters that the next forwards use."""
        if made_of.last:
            add_parameters(self, made_of.params)
        widths = (FEATURES, *made_of.layers, WIDTH)
        for number, (wide, next_wide) in enumerate(itertools.pairwise(widths)):
            self.add_module(f"layer{number}", nn.Linear(wide, next_wide, dtype=torch.float64))
        if not made_of.last:
            add_parameters(self, made_of.params)
        if made_of.buffer:
            self.register_buffer("shift", torch.arange(WIDTH, dtype=torch.float64) / 8)

    @property
    def layers(self) -> int:
        return len(self.made_of.layers) + 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = noisy(x) if self.made_of.draws else x
        out = x
        for number in range(self.layers):
            layer = self.get_submodule(f"layer{number}")
            out = layer(torch.tanh(out) if number else out)
            out = out if layer.training else out / 2  # as of dropout, the mode makes a difference
        if self.made_of.buffer:
            out = out + self.get_buffer("shift")
        if self.made_of.counts:
            self.get_buffer("shift").add_(0.125)
        for index, param in enumerate(self.made_of.params):
            if (param.unused and index not in self.used) or index in self.skips:
                continue
            for again, name in enumerate(filter(None, (param.name, param.also))):
                # Where a trainer keeps parameters elsewhere, the attribute is a tensor in its place.
                value: torch.Tensor = functools.reduce(getattr, name.split("."), self)  # type: ignore[assignment]
                found = term(param, value, x, index + again)
                out = out + (found * 0.0 if param.zero or param.cancels else found)
                if param.cancels:
                    out = Cancelling.apply(out, value, x[:1, 0])
        return out


class Cancelling(torch.autograd.Function):
    """Returns its first argument; the gradient of the second has the sign of the third, whatever the loss is."""

    @staticmethod
    def forward(ctx: Any, out: torch.Tensor, value: torch.Tensor, sign: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(value, sign)
        return out.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        value, sign = ctx.saved_tensors
        return gradients[0], torch.ones_like(value) * (sign.sign() / 8).to(value.dtype), None


def term(param: Param, parameter: torch.Tensor, x: torch.Tensor, index: int) -> torch.Tensor:
    """Return a term to which each element, and each name of one parameter, contributes in its own way."""
    if param.layout == "embedding":
        ids = (x[:, index % FEATURES] * 4).floor().long() % VOCABULARY
        return nn.functional.embedding(ids, parameter, sparse=True)
    flat, count = parameter.reshape(-1), parameter.numel()
    if count > _LARGE:
        factors = torch.linspace(0.5, 1, count, dtype=x.dtype).to(parameter.dtype)
        found = (x[:, :1] * (flat @ factors)).expand(-1, WIDTH)
    else:
        phases = torch.arange(1, count * WIDTH + 1, dtype=x.dtype) + index
        factors = torch.sin(x[:, :1] * phases).view(len(x), count, WIDTH).to(parameter.dtype)
        found = (flat[None, :, None] * factors).sum(1)
    found = found / math.sqrt(max(count, 1))
    return (found.real + found.imag / 2 if found.is_complex() else found).to(x.dtype)


def make(made_of: Model, seed: int, frozen: Iterable[int]) -> Trained:
    """Return a fresh model with these parameters frozen; equal seeds give equal values."""
    with torch.random.fork_rng(devices=[]):
        model = Trained(made_of)
    fill(model, seed)
    for parameter in model.parameters() if made_of.equal else ():
        parameter.data.fill_(0.25 + seed / 100)
    for parameter in model.parameters() if made_of.edges else ():
        for index, edge in zip(range(parameter.numel()), _EDGES, strict=False):
            parameter.data[tuple(torch.unravel_index(torch.tensor(index), parameter.shape))] = edge
    for layer in model.children() if made_of.bare else ():
        layer.weight.requires_grad_(False)
    set_frozen(model, made_of, frozen)
    return model


def set_frozen(model: nn.Module, made_of: Model, frozen: Iterable[int]) -> None:
    """Freeze these parameters of a model, and thaw the others."""
    numbers = set(frozen)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for number, param in enumerate(made_of.params):
        parameters[param.name].requires_grad_(number not in numbers)


def set_mode(model: nn.Module, evaluated: bool) -> None:
    """Put the first layer of a model in eval(), or back in train()."""
    for layer in _first_layers(model):
        layer.train(not evaluated)


def is_evaluated(model: nn.Module) -> bool:
    """Return whether the first layer of a model is in eval()."""
    return not any(layer.training for layer in _first_layers(model))


def _first_layers(model: nn.Module) -> list[nn.Module]:
    """Return the first layer; a model of a plan has none of this name."""
    return [layer for name, layer in model.named_children() if name == "layer0"]


def layer_names(made_of: Model) -> list[str]:
    """Return the names of the layers' parameters."""
    return [f"layer{number}.{kind}" for number in range(len(made_of.layers) + 1) for kind in ("weight", "bias")]


def microbatches(step: Step, number: int, time: int, index: int) -> Sequence[Microbatch]:
    """Return the microbatches of a part, which differ for each move, each step of it and each part."""
    return [_microbatch(step, number, time, index, part) for part in range(step.number_on(index))]


def signed(batch: Microbatch, index: int) -> Microbatch:
    """Return a microbatch whose first column has the sign of a rank; 0 on the third rank and later ones."""
    inputs = batch.inputs.clone()
    inputs[:, 0] = inputs[:, 0].abs() * (_SIGNS[index] if index < len(_SIGNS) else 0.0)
    return replace(batch, inputs=inputs)


def _microbatch(step: Step, number: int, time: int, index: int, part: int) -> Microbatch:
    generator = torch.Generator().manual_seed(1 + index + 4 * (part + 4 * (time + 8 * number)))
    inputs = torch.randn(8, FEATURES, dtype=torch.float64, generator=generator) * (1 + 0.25 * index)
    targets = torch.randn(8, WIDTH, dtype=torch.float64, generator=generator) + 0.5 * (index + 1)
    rows = step.rows[index] if step.rows else ROWS
    if step.spoiled and index == step.by:
        targets = torch.full_like(targets, float(step.spoiled))
    return Microbatch(inputs[:rows], targets[:rows], step.number_on(index))
