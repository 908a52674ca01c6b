"""A clip that is not torch's function: gradients have it already when they are read, before the optimizer's step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from everyrank.parity.run.activations import LIMIT
from everyrank.parity.run.plain import GRADIENT, NORM, Key, clip_factor, scale
from everyrank.parity.run.store import Store
from everyrank.parity.values.dye import Share
from everyrank.suites.compare.patterns.likeness import distance

#: What a clip by hand adds to the norm: nothing in most, torch's 1e-6 in others.
_EPSILONS = (1e-6, 0.0, 1e-8, 1e-12, 1e-7, 1e-5)

#: How near a factor is whose norm was rounded to fp32.
_ROUNDED = 1e-6


@dataclass(frozen=True)
class ByHand:
    """What the gradients show of a clip."""

    factor: float
    """The factor that all gradients have alike; the plain model's if they have none."""
    norm: float | None
    """The norm that this factor comes from; None if the gradients have no factor alike."""
    epsilon: float | None = None
    """What was added to the norm, if the factor shows it."""


def clip_by_hand(
    most: float,
    epsilon: float,
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
    wanted = clip_factor(most, norm, epsilon)
    both = square = 0.0
    for _, mine, expected in _pairs(store, step, shares, values):
        both += float((mine * expected).sum())
        square += float((expected * expected).sum())
    factor = both / square if square else wanted
    if not 0.01 < factor / wanted < 100:
        return ByHand(wanted, None)
    usual = (epsilon, *_EPSILONS) if exact and factor < 1 - LIMIT else ()
    found = next((each for each in usual if abs(factor / clip_factor(most, norm, each) - 1) < LIMIT), None)
    if found is not None:
        wanted = factor = clip_factor(most, norm, found)
    is_right = abs(factor / wanted - 1) < (_ROUNDED if exact else 0.01)
    near = LIMIT if exact else 100 * max((torch.finfo(each.dtype).eps for each in values.values()), default=0.0)
    for key, mine, expected in _pairs(store, step, shares, values):
        if not distance(mine / factor, expected) <= near * scale(store, key):
            return ByHand(wanted, None)
    return ByHand(factor, norm if is_right else norm * wanted / factor, found)


def _pairs(
    store: Store, step: int, shares: Mapping[str, Sequence[Share]], values: Mapping[str, torch.Tensor]
) -> Iterator[tuple[Key, torch.Tensor, torch.Tensor]]:
    for key, mine in values.items():
        for share in shares[key]:
            known = (GRADIENT, step, share.name)
            truth = store.get(known)
            if truth is not None:
                yield known, share.read(mine).double(), share.expected(truth).double()


def own_norm(store: Store, step: int, shares: Iterable[Share]) -> float:
    """Return the norm of the plain model's gradients of what a rank holds."""
    squares = (
        float(torch.linalg.vector_norm(share.expected(truth).double())) ** 2
        for share in shares
        if (truth := store.get((GRADIENT, step, share.name))) is not None
    )
    return math.sqrt(sum(squares))
