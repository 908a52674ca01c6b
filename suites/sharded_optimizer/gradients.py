"""The gradients of both sides of ``sharded-optimizer``: compared, and with a number that is undefined."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from everyrank.suites.compare.comparison import Comparison, check
from everyrank.suites.sharded_optimizer.sides import Sides


def compare_gradients(sides: Sides, comparison: Comparison, number: int = 0, when: str = "") -> None:
    """Compare the gradients of this rank's tensors with those of the reference, for a verdict."""
    found, wanted = {}, {}
    for param in sides.parameters:
        whole = param.twin.grad
        for name, (tensor, index) in param.named().items():
            have, want = ("None" if grad is None else "a tensor" for grad in (tensor.grad, whole))
            check(have == want, f"the gradient of {name} is {have} instead of {want}{when}")
            if tensor.grad is not None and whole is not None:
                own, due = tensor.grad.to_dense(), whole.to_dense()[index]
                first = own.flatten()[:3].tolist()
                check(bool(due.any() or not own.any()), f"the gradient of {name} is {first} instead of zeros{when}")
                found[f"the gradient of {name}"], wanted[f"the gradient of {name}"] = own, due
    comparison.step(number, found, wanted)


def drop_gradient(sides: Sides, turn: int) -> None:
    """Set the gradient of a parameter to None: of another one in each turn."""
    able = [param for param in sides.handed if param.twin.grad is not None]
    if able:
        chosen = able[turn % len(able)]
        for tensor in (chosen.twin, *(piece for piece, _ in chosen.pieces)):
            tensor.grad = None


@contextlib.contextmanager
def undefined_number(sides: Sides, turn: int) -> Iterator[None]:
    """Let one number of a gradient be undefined, in most turns of a whole parameter; give back what was there."""
    tensors = [tensor for param in sides.parameters for tensor in (param.twin, *(piece for piece, _ in param.pieces))]
    kept = [(tensor, None if tensor.grad is None else tensor.grad.clone()) for tensor in tensors]
    able = [param for param in sides.handed if param.twin.grad is not None and param.twin.grad.numel()]
    able = [param for param in able if param.whole and turn % 3] or able
    if able:
        chosen = able[turn % len(able)]
        assert chosen.twin.grad is not None
        whole = chosen.twin.grad.clone(memory_format=torch.contiguous_format)
        whole.view(-1)[turn % whole.numel()] = float("nan")
        sides.set_gradient(chosen, whole)
    try:
        yield
    finally:
        for tensor, gradient in kept:
            tensor.grad = gradient
