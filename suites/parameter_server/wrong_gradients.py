"""Gradients that a server refuses, each wrong in one way, and the pattern that the error must match."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

Gradients = list[Any]

#: Patterns for the error's text, by the kind of defect; the docstring of contract.py lists the words.
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
        # The imaginary part of a complex number, which is more easily forgotten.
        (torch.view_as_real(wrong) if wrong.is_complex() else wrong).view(-1)[-1] = value
        return wrong

    return change


def _rows_that_overflow(gradient: torch.Tensor) -> torch.Tensor:
    values = torch.full((2, *gradient.shape[1:]), torch.finfo(gradient.dtype).max, dtype=gradient.dtype)
    rows = torch.zeros(1, 2, dtype=torch.int64)
    return torch.sparse_coo_tensor(rows, values, gradient.shape, check_invariants=True)


#: Defects of one dense gradient: the change that makes it, and the pattern.
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

#: Those of a sparse one, which scripts alone have: a row stands in it twice, and its numbers have no finite sum.
SPARSE: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str]] = {
    "rows-overflow": (_rows_that_overflow, FINITE),
}

#: Defects of the list of gradients.
ALL: dict[str, tuple[Callable[[Gradients], Gradients], str]] = {
    "count-fewer": (lambda gradients: gradients[:-1], COUNT),
    "count-more": (lambda gradients: [*gradients, gradients[0]], COUNT),
    "count-none": (lambda gradients: [], COUNT),
}

#: The pattern of each defect.
PATTERNS = {name: pattern for defects in (ONE, SPARSE, ALL) for name, (_, pattern) in defects.items()}

#: The names of the defects of dense gradients that a server takes if it is built with ``non_finite``.
NOT_FINITE = tuple(name for name, (_, pattern) in ONE.items() if pattern is FINITE)


def change(name: str, gradient: torch.Tensor) -> torch.Tensor:
    """Return the gradient with this defect."""
    return {**ONE, **SPARSE}[name][0](gradient)


@functools.cache
def is_wrong(name: str, shape: tuple[int, ...], dtype: str) -> bool:
    """Return whether this change makes a gradient wrong for a parameter of this shape and dtype."""
    right = torch.zeros(shape, dtype=getattr(torch, dtype))
    if name == "dtype-whole" and right.is_complex():
        return False  # torch drops imaginary parts, and warns
    try:
        wrong = change(name, right)
    except (IndexError, RuntimeError):
        return False  # it has no element, or no such dimension
    return wrong.shape != right.shape or wrong.dtype != right.dtype or not bool(wrong.to_dense().isfinite().all())
