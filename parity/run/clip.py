"""A clip that is not torch's function: gradients have it already when they are read, before the optimizer's step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from everyrank.parity.run.activations import LIMIT
from everyrank.parity.run.plain import GRADIENT, NORM, Key, scale
from everyrank.parity.run.store import Store
from everyrank.parity.values.dye import Share
from everyrank.suites.compare.patterns.likeness import distance


@dataclass(frozen=True)
class ByHand:
    """What the gradients show of a clip."""

    factor: float
    """The factor that all gradients have alike; the plain model's if they have none."""
    norm: float | None
    """The norm that this factor comes from; None if the gradients have no factor alike."""


def clip_by_hand(
    most: float,
    store: Store,
    step: int,
    shares: Mapping[str, Sequence[Share]],
    values: Mapping[str, torch.Tensor],
    exact: bool,
) -> ByHand:
    """Return the factor by which all gradients of this rank were clipped.

    A factor that they have alike and that is not the plain model's is a fault of the norm, and of no gradient.
    """
    norm = float(store[NORM, step])
    wanted = min(1.0, most / (norm + 1e-6))
    both = square = 0.0
    for _, mine, expected in _pairs(store, step, shares, values):
        both += float((mine * expected).sum())
        square += float((expected * expected).sum())
    factor = both / square if square else wanted
    if not 0.01 < factor / wanted < 100:
        return ByHand(wanted, None)
    if abs(factor / wanted - 1) < (LIMIT if exact else 0.01):
        factor = wanted
    near = LIMIT if exact else 100 * max((torch.finfo(each.dtype).eps for each in values.values()), default=0.0)
    for key, mine, expected in _pairs(store, step, shares, values):
        if not distance(mine / factor, expected) <= near * scale(store, key):
            return ByHand(wanted, None)
    return ByHand(factor, norm * wanted / factor)


def _pairs(
    store: Store, step: int, shares: Mapping[str, Sequence[Share]], values: Mapping[str, torch.Tensor]
) -> Iterator[tuple[Key, torch.Tensor, torch.Tensor]]:
    for key, mine in values.items():
        for share in shares[key]:
            known = (GRADIENT, step, share.name)
            truth = store.get(known)
            if truth is not None:
                yield known, share.read(mine).double(), share.expected(truth).double()
