"""What all ranks of a size have kept, and the whole tensors of which each has a part."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from everyrank.parity.run.activations import LIMIT
from everyrank.parity.script.kept import Facts, Moment, Part
from torch import Tensor

#: How many times more than one rank's own noise ranks may be off.
TIMES = 16.0
#: Gradients are compared with the largest of all: one that is rounding alone has no value of its own.
GRADIENTS = ("gradient at the clip", "gradient")


@dataclass(frozen=True)
class Step:
    """A step as all ranks of a size have kept it."""

    rows: list[list[list[str]]]
    moments: list[list[Moment]]


@dataclass(frozen=True)
class Run:
    """What all ranks of a size have kept."""

    facts: list[Facts]
    steps: list[Step]

    @property
    def size(self) -> int:
        return len(self.facts)

    @functools.cached_property
    def weights(self) -> list[frozenset[str]]:
        """The names of the weights that each rank has called: not the same in a pipeline."""
        return [
            frozenset(
                name
                for step in self.steps
                for moment in step.moments[rank]
                if moment.kind == "weight"
                for name in moment.parts
            )
            for rank in range(self.size)
        ]

    def lacks(self, rank: int, name: str) -> bool:
        """Return whether only other ranks have this weight, or the weight of this state."""
        bare = name.rpartition("` of `")[2]
        return bare not in self.weights[rank] and any(bare in names for names in self.weights)

    @property
    def microbatches(self) -> int:
        """How many backwards a step has."""
        return max(1, self.facts[0].backwards // max(1, self.facts[0].rounds))


def whole(parts: Sequence[Part | None]) -> Tensor | None:
    """Return a tensor of which each rank has a part; None if some elements are nowhere."""
    found = [part for part in parts if part is not None]
    if not found:
        return None
    if found[0].ids is None:
        return found[0].values.double().reshape(found[0].shape)
    size = int(torch.Size(found[0].shape).numel())
    values = torch.full((size,), float("nan"), dtype=torch.float64)
    for part in found:
        values[part.positions] = part.values.double()
    if values.isnan().any() and sum(int(part.positions.numel()) for part in found) < size:
        return None
    return values.reshape(found[0].shape)


def nth(moments: Sequence[Moment], index: int) -> Moment | None:
    found = [moment for moment in moments if moment.kind != "loss"]
    return found[index] if 0 <= index < len(found) else None


def tensors(run: Run | None, step: int, index: int) -> dict[str, list[Part | None]]:
    """Return what each rank has of the tensors of a moment."""
    if run is None or step >= len(run.steps):
        return {}
    moments = [nth(each, index) for each in run.steps[step].moments]
    names = dict.fromkeys(name for moment in moments if moment is not None for name in moment.parts)
    return {name: [moment.parts.get(name) if moment is not None else None for moment in moments] for name in names}


def has_shards(run: Run) -> bool:
    """Return whether each rank's optimizer may have parameters that others have not."""
    return any("Zero" in name for facts in run.facts for name in facts.optimizers)


def rounding(eps: float) -> float:
    """Return how far values may be off without any noise: many roundings, but few of a dtype that is coarse.

    In fp64 it is what parity takes: rounding that a script makes larger stays below it, and faults do not.
    """
    return max((64 if eps < 1e-4 else 4) * eps, LIMIT)
