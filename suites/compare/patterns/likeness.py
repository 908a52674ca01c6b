"""What values are like that are not a tensor's: moved, a multiple, spoilt, wrong from an index on.

Each is decided here for both: for a contract's case, and for parity, where each rank has a part of a tensor.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

#: So many elements are compared at once: they stay in the processor's cache, and no large tensor is copied.
AT_ONCE = 1 << 16


@dataclass(frozen=True)
class Held:
    """What is held of a tensor: positions in the whole, flat, and values."""

    ids: torch.Tensor
    values: torch.Tensor


def all_of(values: torch.Tensor) -> Held:
    """Return the values of a whole tensor."""
    return Held(torch.arange(values.numel()), values.reshape(-1))


def distance(values: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the largest difference; infinity if one has a NaN that the other has not."""
    if values.numel() <= AT_ONCE:
        return _distance(values, expected) if values.numel() else 0.0
    pieces = zip(values.reshape(-1).split(AT_ONCE), expected.reshape(-1).split(AT_ONCE), strict=True)
    return max(_distance(*pair) for pair in pieces)


def _distance(values: torch.Tensor, expected: torch.Tensor) -> float:
    off = (values.double() - expected).abs_()
    largest = float(off.max())
    if not math.isnan(largest):
        return largest
    equal = (values == expected) | (values.isnan() & expected.isnan())
    return float(torch.where(equal, 0.0, off.nan_to_num(nan=float("inf"), posinf=float("inf"))).max())


def spoilt(held: Held, whole: torch.Tensor) -> torch.Tensor:
    """Return the positions of values that are not finite where the whole is."""
    expected = whole.reshape(-1)[held.ids]
    return held.ids[~held.values.isfinite() & expected.isfinite()]


def multiple(values: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the number of times that values are nearest to; 0 if all that is expected is 0."""
    values, expected = values.double().reshape(-1), expected.double().reshape(-1)
    square = float(torch.dot(expected, expected))
    return float(torch.dot(values, expected)) / square if square else 0.0


def moved(parts: Sequence[tuple[Held, float]], whole: torch.Tensor) -> tuple[int, int] | None:
    """Return the dimension, and by how much further in it the values stand in the whole: around its end, or up to it.

    Each part has with it how near its values must be.
    """
    flat = whole.reshape(-1).double()
    for dimension, size in enumerate(whole.shape):
        stride = whole.shape[dimension + 1 :].numel()
        for number in range(1, size):
            for by in (number, -number):
                if all(_is_moved(held, flat, stride, size, by, near) for held, near in parts):
                    return dimension, by
    return None


def _is_moved(held: Held, flat: torch.Tensor, stride: int, size: int, by: int, near: float) -> bool:
    """Return whether values are those that stand elsewhere, if most of them have a place there."""
    position = held.ids // stride % size
    values = held.values.double()
    around = flat[held.ids + ((position + by) % size - position) * stride]
    if distance(values, around) <= near:
        return True
    inside = (position + by >= 0) & (position + by < size)
    return bool(2 * int(inside.sum()) > len(position)) and distance(values[inside], around[inside]) <= near


def wrong_from(parts: Iterable[tuple[torch.Tensor, torch.Tensor]], shape: torch.Size) -> tuple[int, int] | None:
    """Return the dimension, and the index in it from which on values are wrong, and right before.

    A part is its positions, and which of them are wrong.
    """
    parts = [*parts]
    for dimension, size in enumerate(shape):
        stride = shape[dimension + 1 :].numel()
        wrong = {index for ids, bad in parts for index in (ids[bad] // stride % size).unique().tolist()}
        right = {index for ids, bad in parts for index in (ids[~bad] // stride % size).unique().tolist()}
        first = min(wrong, default=0)
        if first > 0 and wrong == {*range(first, size)} and right >= {*range(first)}:
            return dimension, first
    return None
