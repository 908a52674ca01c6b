"""Gradients that a server refuses, each wrong in one way, and the words that its error must have."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

Gradients = list[Any]

#: A pattern that the error's text must have, by what is wrong: the words stand in docs/conformance.md.
SHAPE = r"shape|size|dimension|[\[(]\d"
COUNT = "count|number|length|argument|gradients"
DTYPE = r"type|float|complex|int\d"
FINITE = "finite|nan|inf"

_NARROWER = {
    torch.float64: torch.float32,
    torch.float32: torch.float16,
    torch.complex128: torch.complex64,
}


def _with(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def change(gradient: torch.Tensor) -> torch.Tensor:
        wrong = gradient.clone(memory_format=torch.contiguous_format)
        wrong.view(-1)[-1] = value
        return wrong

    return change


#: What is wrong with one gradient: how, and the pattern.
ONE: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str]] = {
    "shape-more-rows": (lambda grad: torch.cat([grad, grad[:1]]), SHAPE),
    "shape-broadcasts": (lambda grad: grad[:1], SHAPE),
    "shape-zero-dim": (lambda grad: grad.flatten()[0], SHAPE),
    "shape-transposed": (lambda grad: grad.t(), SHAPE),
    "shape-flat": (lambda grad: grad.flatten(), SHAPE),
    "dtype-narrower": (lambda grad: grad.to(_NARROWER[grad.dtype]), DTYPE),
    "dtype-complex": (lambda grad: grad.to(torch.complex128), DTYPE),
    "dtype-whole": (lambda grad: grad.long(), DTYPE),
    "nan": (_with(float("nan")), FINITE),
    "inf": (_with(float("inf")), FINITE),
    "minus-inf": (_with(-float("inf")), FINITE),
}

#: What is wrong with the list of gradients.
ALL: dict[str, tuple[Callable[[Gradients], Gradients], str]] = {
    "count-fewer": (lambda gradients: gradients[:-1], COUNT),
    "count-more": (lambda gradients: [*gradients, gradients[0]], COUNT),
    "count-none": (lambda gradients: [], COUNT),
}

#: The names of values that a server takes where it is told to.
NOT_FINITE = tuple(name for name, (_, words) in ONE.items() if words is FINITE)


@functools.cache
def is_wrong(name: str, shape: tuple[int, ...], dtype: str) -> bool:
    """Whether this change of a gradient makes it a wrong one for a parameter of this shape and dtype."""
    right = torch.zeros(shape, dtype=getattr(torch, dtype))
    if name == "dtype-whole" and right.is_complex():
        return False  # torch drops imaginary parts, and warns
    try:
        wrong = ONE[name][0](right)
    except (IndexError, RuntimeError):
        return False  # there is no element, or no such dimension
    return wrong.shape != right.shape or wrong.dtype != right.dtype or not bool(wrong.isfinite().all())
