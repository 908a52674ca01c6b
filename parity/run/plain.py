"""The plain model's training in one process: the truth that ranks are compared with, and what rounding does to it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import torch
from everyrank.parity.errors import Unusable, in_a_line
from everyrank.parity.run.store import Store, Writer
from everyrank.parity.setup.alone import Take, in_lone_world
from everyrank.parity.setup.given import SEED, Setup, seed
from everyrank.parity.setup.models import Reference, reference
from everyrank.parity.setup.optimizers import Optimizers
from everyrank.parity.values.collectives import without_collectives
from everyrank.parity.values.exact import aside, running_in
from everyrank.parity.values.tree import local, rows, rows_of
from everyrank.parity.values.watch import Output, draws, needs_closure, outputs
from everyrank.suites.compare.patterns.likeness import distance
from torch import nn

#: A value of a run: its kind, the step, and what it belongs to.
Key = tuple[Any, ...]

FORWARD, BACKWARD, GRADIENT, PARAMETER, BUFFER = "forward", "backward", "gradient", "parameter", "buffer"
LOSS, NORM, NUMBER, RATES, STATE, WEIGHT = "loss", "norm", "number", "rates", "state", "weight of parts"

#: The number of the step before the first: the initialization.
START = -1


#: What to do with a collective that the plain model's run calls.
_INSTEAD = {
    "loss": "return this rank's own loss from loss=, and reduce in step= or in what parallelize returns.",
    "optimizer": "pass the plain optimizer in optimizer=, and return (module, optimizer) from parallelize.",
}


class Recorder(Protocol):
    """What is done with the values of a run."""

    def value(self, key: Key, value: torch.Tensor) -> None:
        """Take a value of the whole batch, or of a part of it."""


@dataclass
class Keeper:
    """Write all values into the file, and note the order in which they came."""

    writer: Writer
    forward: list[Output] = field(default_factory=list)
    backward: list[str] = field(default_factory=list)
    too_large: set[str] = field(default_factory=set)
    buffers: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.writer.notes = {
            FORWARD: self.forward,
            BACKWARD: self.backward,
            "too large": self.too_large,
            "buffers": self.buffers,
            **{f"largest {kind}": {} for kind in (GRADIENT, BACKWARD, STATE)},
        }

    @aside
    def value(self, key: Key, value: torch.Tensor) -> None:
        if key[0] == LOSS and not value.isfinite():
            raise Unusable(
                f"the plain model's loss is {float(value):g} in step {key[1] + 1}, in one process and without "
                "parallelize: there is nothing to compare with. Mend model=, batch=, loss= or the rate of optimizer="
            )
        if key[0] == FORWARD and key[1] == 0:
            self.forward.append(key[2])
        if key[0] == GRADIENT and key[1] == 0:
            self.backward.append(key[2])
        if key[0] == BUFFER:
            self.buffers.add(key[2])
        is_output = key[0] in (FORWARD, BACKWARD)
        most = self.writer.write_output(key, value) if is_output else self.writer.write(key, value)
        if most is None:
            self.too_large.add(key[2][0])
        elif key[0] in (GRADIENT, BACKWARD, STATE):
            largest = self.writer.notes[f"largest {key[0]}"]
            largest[_together(key)] = max(largest.get(_together(key), 0.0), most)


@dataclass
class Noise:
    """Measure how far a run in a narrower dtype is from the truth, relative to the largest value of each tensor."""

    store: Store
    errors: dict[Key, float] = field(default_factory=dict)

    def value(self, key: Key, value: torch.Tensor) -> None:
        truth = self.store.get(key)
        if truth is None:
            return
        if key[0] in (FORWARD, BACKWARD) and value.shape != truth.shape:
            return
        relative = distance(value.detach(), truth) / scale(self.store, key)
        if math.isfinite(relative):
            self.errors[key] = max(self.errors.get(key, 0.0), relative)


def _together(key: Key) -> Any:
    """Return what gradients of a step have alike, or what an optimizer keeps under one name."""
    return key[3] if key[0] == STATE else key[1]


def scale(store: Store, key: Key) -> float:
    """Return what an error of this tensor is relative to.

    A gradient that is zero but for rounding, as that of a key's bias, is measured by the largest gradient.
    """
    largest = store.largest(key)
    if key[0] in (GRADIENT, BACKWARD, STATE):
        return max(largest, 1e-6 * float(store.notes[f"largest {key[0]}"].get(_together(key), 0.0)), 1e-300)
    if key[0] == PARAMETER and key[1] != START:
        before = store.largest((PARAMETER, START, key[2]))
        return max(largest, before, 1e-12)
    return max(largest, 1e-12)


def clip_factor(most: float, norm: float, epsilon: float) -> float:
    """Return by how much a clip makes gradients of this norm smaller."""
    return min(1.0, most / (norm + epsilon)) if norm + epsilon else 1.0


def play(
    setup: Setup,
    recorder: Recorder,
    dtype: torch.dtype,
    *,
    exact: bool,
    steps: int,
    parts: int = 1,
    weight: float = 1.0,
    cast: bool = False,
    jitter: int = 0,
    counts: Iterable[int] = (),
) -> None:
    """Train the plain model in one process; the batch of a step in one piece, or in equal parts one after another.

    ``weight`` is how much the loss of each part counts. ``jitter`` is the seed by which each parameter is moved by
    about as much as it is rounded. In the end it is recorded how much parts would count, for each of the ``counts``.
    """

    def run(recorder: Recorder) -> None:
        with _alone(setup, recorder, "what model= and optimizer= make"):
            model = reference(
                setup, dtype, exact=exact, cast=cast, prepare=lambda fresh: _jitter(fresh, dtype, jitter)
            )
        with running_in(dtype if exact else torch.get_default_dtype(), exact):
            _train(setup, recorder, model, dtype, steps, parts, weight)
            for count in counts:
                recorder.value((WEIGHT, count), _weight_of_parts(setup, model, dtype, count))

    if setup.one_rank:
        in_lone_world(lambda give: run(_Giver(give)), lambda pair: recorder.value(*pair))
    else:
        run(recorder)


@dataclass
class _Giver:
    """Give all values to another process."""

    give: Take

    @aside
    def value(self, key: Key, value: torch.Tensor) -> None:
        self.give((key, value.detach().clone()))


def _alone(setup: Setup, recorder: Recorder, caller: str) -> AbstractContextManager[None]:
    """See that the run that comes first calls no collective in what this is about; the others would do it, too."""
    if setup.one_rank or not isinstance(recorder, Keeper):
        return contextlib.nullcontext()
    return without_collectives(caller, _INSTEAD["optimizer" if "optimizer=" in caller else "loss"])


def _train(
    setup: Setup, recorder: Recorder, model: Reference, dtype: torch.dtype, steps: int, parts: int, weight: float
) -> None:
    _parameters(recorder, model, START)
    for step in range(steps):
        batch = setup.whole_batch(step, dtype)
        seed(SEED + step)
        total = _backward(setup, recorder, model, batch, step, parts, weight)
        recorder.value((LOSS, step), total)
        norm = _gradients(recorder, model, step)
        recorder.value((NORM, step), norm)
        _clip(setup, model)
        recorder.value((RATES, step), torch.tensor(rates(model.optimizer), dtype=torch.float64))
        for each in model.optimizer.each:
            with _alone(setup, recorder, f"the step of {type(each).__name__}, which optimizer= makes,"):
                if needs_closure(each):
                    each.step(_closure(setup, model, each, batch, parts, weight, total))
                else:
                    each.step()
        model.optimizer.end()
        _parameters(recorder, model, step)
        if step == setup.steps - 1:
            for name, parameter in model.parameters.items():
                for kind, value in model.optimizer.state_of(parameter):
                    recorder.value((STATE, step, name, kind), value)


def rates(optimizer: Optimizers) -> tuple[float, ...]:
    """Return the learning rates of the groups of all optimizers, each once."""
    return tuple(sorted({float(group["lr"]) for group in optimizer.param_groups if "lr" in group}))


def _clip(setup: Setup, model: Reference) -> None:
    if setup.clip is not None:
        gradients = [each.grad for each in model.parameters.values() if each.grad is not None]
        norm = torch.nn.utils.get_total_norm([local(each) for each in gradients])
        factor = clip_factor(setup.clip, float(norm), setup.epsilon)
        for each in gradients if factor < 1 else ():
            each.mul_(factor)
    if setup.clamp is not None:
        torch.nn.utils.clip_grad_value_(model.parameters.values(), setup.clamp)


class _Nobody:
    """Take no value."""

    def value(self, key: Key, value: torch.Tensor) -> None:
        pass


def _closure(
    setup: Setup, model: Reference, optimizer: Any, batch: Any, parts: int, weight: float, first: torch.Tensor
) -> Callable[[], torch.Tensor]:
    """Return what evaluates a step's loss and gradients as often as an optimizer asks; the first time is done."""
    known = [first]

    def closure() -> torch.Tensor:
        if known:
            return known.pop()
        optimizer.zero_grad()
        loss = _backward(setup, _Nobody(), model, batch, 0, parts, weight)
        _clip(setup, model)
        return loss

    return closure


def _jitter(model: nn.Module, dtype: torch.dtype, number: int) -> None:
    if not number:
        return
    generator = torch.Generator().manual_seed(number)
    with torch.no_grad():
        for parameter in model.parameters():
            random = torch.rand(parameter.shape, generator=generator, dtype=torch.float64).to(parameter) * 2 - 1
            parameter.mul_(1 + torch.finfo(dtype).eps * random)


def _backward(
    setup: Setup, recorder: Recorder, model: Reference, batch: Any, step: int, parts: int, weight: float
) -> torch.Tensor:
    """Run forward and backward; return the loss."""

    def watcher(output: Output, value: torch.Tensor, _: bool) -> None:
        recorder.value((FORWARD, step, output), local(value))
        if value.requires_grad:
            # Gradients of outputs come in a backward's order; a module's name says whose they are.
            value.register_hook(
                lambda gradient: (
                    None if gradient is None else recorder.value((BACKWARD, step, output), local(gradient))
                )
            )

    losses = []
    for part in range(parts):
        piece = batch if parts == 1 else rows(batch, part, parts)
        with outputs(model.modules.items(), watcher):
            before = torch.get_rng_state()
            with _alone(setup, recorder, "loss="):
                found = setup.loss(model.made, piece)
            loss = _checked_loss(setup, recorder, found, step)
            if not torch.equal(before, torch.get_rng_state()):
                raise Unusable(_random(model, partial(setup.loss, model.made, piece)))
        with _alone(setup, recorder, "the backward of loss="):
            (loss * weight).backward()
        losses.append(local(loss.detach()).reshape(()) * weight)
    return torch.stack(losses).sum()


def _checked_loss(setup: Setup, recorder: Recorder, found: Any, step: int) -> torch.Tensor:
    if isinstance(found, tuple):
        if len(found) != 2:
            raise Unusable(
                f"loss(model, batch) returned a tuple of {len(found)}: return a tensor with one number, or a sum and "
                "the number by which it is divided."
            )
        recorder.value((NUMBER, step), torch.as_tensor(found[1]).detach().double().reshape(()))
    loss = setup.share_of(found, step)
    if not isinstance(loss, torch.Tensor):
        raise Unusable(f"loss(model, batch) returned {type(loss).__name__}: return a tensor with one number.")
    if loss.numel() != 1:
        raise Unusable(f"loss(model, batch) returned a tensor of shape {tuple(loss.shape)}: return its mean.")
    if not loss.requires_grad:
        raise Unusable("loss(model, batch) returned a tensor without a gradient")
    return loss


def _random(model: Reference, again: Callable[[], Any]) -> str:
    """Return what draws random numbers, for which the loss is evaluated again."""
    active = [
        name
        for name, module in model.modules.items()
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p
    ]
    if active:
        return (
            f"the plain model drops at random ({', '.join(active[:3])}), so two correct runs differ: build it with "
            "p=0, or make its masks from the position of each element."
        )
    roots = {"": model.made} if isinstance(model.made, nn.Module) else {}
    with draws({**roots, **model.modules}.items()) as drawing:
        again()
    sentence = "loss= draws random numbers"
    if drawing:
        name = drawing[0]
        module = f"`{name}` ({type(model.modules[name]).__name__})" if name else "the plain model"
        sentence = f"{module} draws random numbers in its forward"
    return f"{sentence}, so two correct runs differ: switch that off, or draw them from the batch."


def _gradients(recorder: Recorder, model: Reference, step: int) -> torch.Tensor:
    """Record each gradient, those of the last layers first; return their norm."""
    named = [(name, local(each.grad)) for name, each in model.parameters.items() if each.grad is not None]
    for name, gradient in reversed(named):
        recorder.value((GRADIENT, step, name), gradient)
    return torch.nn.utils.get_total_norm([gradient for _, gradient in named]).detach().reshape(())


def _parameters(recorder: Recorder, model: Reference, step: int) -> None:
    for name, parameter in model.parameters.items():
        recorder.value((PARAMETER, step, name), local(parameter.detach()))
    for name, buffer in model.buffers.items():
        recorder.value((BUFFER, step, name), local(buffer))


def weight_of_parts(store: Store, parts: int) -> float | None:
    """Return how much the loss of each part of a batch counts; None if they are of unequal weight.

    A loss may be the mean over a part, or what the part adds to the whole batch's. Where it is neither, as a mean
    over unequal numbers of tokens, a run in parts is another training, and shows more than rounding.
    """
    weight = 1.0 if parts == 1 else float(store[WEIGHT, parts])
    return None if math.isnan(weight) else weight


@torch.no_grad()
def _weight_of_parts(setup: Setup, model: Reference, dtype: torch.dtype, parts: int) -> torch.Tensor:
    batch = setup.whole_batch(0, dtype)
    if rows_of(batch) % parts:
        return torch.tensor(math.nan)
    seed(SEED)
    found = setup.loss(model.made, batch)
    if isinstance(found, tuple):
        setup = replace(setup, numbers=(float(found[1]),))
    whole = float(local(setup.share_of(found, 0)))
    try:
        every = [setup.loss(model.made, rows(batch, part, parts)) for part in range(parts)]
        losses = [float(local(setup.share_of(each, 0))) for each in every]
    except Exception as error:
        if setup.has_own_parts:
            return torch.tensor(math.nan)
        raise Unusable(
            "loss(model, batch) takes the whole batch, and no part of its rows, into which the plain loop cuts it: "
            f"{in_a_line(error)}. Put what belongs to a row into the "
            "batch, or pass step=."
        ) from None
    near = 1e-8 if dtype == torch.float64 else 1e3 * torch.finfo(dtype).eps
    known = (1 / parts, 1.0, *(1 / count for count in range(2, parts) if parts % count == 0))
    found = (each for each in known if math.isclose(sum(losses) * each, whole, rel_tol=near))
    return torch.tensor(next(found, math.nan), dtype=torch.float64)


def numbers_of(store: Store, steps: int) -> tuple[float, ...]:
    """Return the numbers by which the loss of each step's batch was divided, if it is a sum."""
    known = [store.get((NUMBER, step)) for step in range(steps)]
    return tuple(float(each) for each in known if each is not None)
