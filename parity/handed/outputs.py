"""The outputs of the model and of the other, position by position, and the first module that parts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from everyrank.model.counts import count
from everyrank.parity.errors import Unusable, defect
from everyrank.parity.handed.given import Pair
from everyrank.parity.values.exact import running_in
from everyrank.parity.values.lines import with_line
from everyrank.parity.values.names import plain_name
from everyrank.parity.values.tree import local, tensors
from everyrank.parity.values.watch import Output, outputs, watchable
from torch import nn

#: How far outputs may part in fp64, relative to the largest of them.
LIMIT = 1e-8


@dataclass
class Run:
    """What a module gives, and what each module inside of it does, in the order of the calls' ends."""

    final: list[torch.Tensor]
    inside: dict[Output, torch.Tensor] = field(default_factory=dict)


@torch.no_grad()
def run(pair: Pair, module: nn.Module, is_other: bool, *, inside: bool = True) -> Run:
    """Run a module in fp64; keep the outputs of the modules inside, too, if these are asked for."""
    found = Run([])

    def watcher(output: Output, value: torch.Tensor, _: bool) -> None:
        found.inside[output] = _whole(value)

    named = [(plain_name(name, None), each) for name, each in watchable(module) if name and inside]
    try:
        with running_in(torch.float64, True), outputs(named, watcher):
            returned = pair.outputs(module, is_other)
    except Exception as error:
        if isinstance(error, Unusable) or defect(error) is not None:
            raise
        side = "other module" if is_other else "model"
        raise Unusable(
            f"the {side} does not run on inputs= in fp64: {with_line(error)}. Pass inputs= that both take, or "
            "forward= and other_forward=, functions of a module and the inputs."
        ) from None
    found.final = [_whole(each) for each in tensors(returned)]
    if not found.final:
        raise Unusable("the modules return no tensor with floating numbers: return logits from forward=.")
    return found


def _whole(value: Any) -> torch.Tensor:
    value = value.full_tensor() if hasattr(value, "full_tensor") else local(value)
    found: torch.Tensor = value.detach().double().cpu().clone()
    return found


def _error(mine: torch.Tensor, expected: torch.Tensor) -> float:
    """Return how far an output is off, relative to the largest value."""
    if not expected.numel():
        return 0.0
    error = float((mine - expected).abs().max() / expected.abs().max().clamp(min=1e-12))
    return error if error == error else float("inf")


def agree(mine: Run, expected: Run) -> bool:
    """Return whether the final outputs are the same."""
    return len(mine.final) == len(expected.final) and all(
        each.shape == other.shape and _error(each, other) <= LIMIT
        for each, other in zip(mine.final, expected.final, strict=True)
    )


def where_they_part(mine: Run, expected: Run) -> str:
    """Return in which positions the outputs part, and by how much."""
    if len(mine.final) != len(expected.final):
        return f"are {count(len(mine.final), 'tensor')}, and {len(expected.final)} of the model"
    for each, other in zip(mine.final, expected.final, strict=True):
        if each.shape != other.shape:
            return f"have the shape {tuple(each.shape)}, and {tuple(other.shape)} of the model"
        if _error(each, other) > LIMIT:
            return _positions(each, other)
    return "agree"


def _positions(mine: torch.Tensor, expected: torch.Tensor) -> str:
    by = f"by up to {_error(mine, expected):.2g} of the largest"
    off = ~((mine - expected).abs() <= LIMIT * expected.abs().max())
    index = [int(each) for each in off.nonzero()[0]]
    if mine.ndim < 2:
        return f"part {by}, first at {index}"
    probabilities = (mine.log_softmax(-1) - expected.log_softmax(-1)).abs().amax()
    by = f"{by}, log-probabilities by up to {float(probabilities):.2g}"
    if mine.ndim < 3:
        rows = off.flatten(1).any(1)
        return f"part in {int(rows.sum())} of {count(len(rows), 'row')}, first in row {index[0]}, {by}"
    positions = off.flatten(2).any(2).any(0)
    first = int(positions.nonzero()[0])
    position = f"at {int(positions.sum())} of {count(len(positions), 'position')}, first at position {first}"
    if bool(positions.all()):
        position = "at every position"
    elif bool(positions[first:].all()):
        position = f"from position {first} on"
    return f"part {position} (row {int(off[:, first].flatten(1).any(1).nonzero()[0])}), {by}"


@dataclass(frozen=True)
class FirstModule:
    """The first module of the other whose output is none of the model's, and the last before it that agrees."""

    name: str
    before: str

    def words(self) -> str:
        before = f", after `{self.before}`, which agrees" if self.before else ""
        return f"the first module that parts is `{self.name}`{before}"


def first_module(pair: Pair, mine: Run, expected: Run) -> FirstModule | None:
    """Return the first module that parts: by its name, or by values if the model has none of that name."""
    last, unknown = "", ""
    for (name, call, number), value in mine.inside.items():
        known = name if pair.rename is None else pair.rename(name)
        named = expected.inside.get((known, call, number))
        if named is not None and named.shape == value.shape:
            if _error(value, named) > LIMIT:
                return FirstModule(name, last)
            last, unknown = name, ""
        elif any(_is_same(value, each) for each in expected.inside.values()):
            last, unknown = name, ""
        else:
            # What has no partner may be fused, and is a fault only if nothing agrees after it.
            unknown = unknown or name
    return FirstModule(unknown, last) if unknown else None


def _is_same(mine: torch.Tensor, other: torch.Tensor) -> bool:
    return mine.numel() == other.numel() and _error(mine.reshape(-1), other.reshape(-1)) <= LIMIT
