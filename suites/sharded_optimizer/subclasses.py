"""Optimizer classes that torch does not have."""

from __future__ import annotations

from typing import Any

import torch


class Signed(torch.optim.SGD):
    """A user's optimizer, which works element by element as its base does: it takes the sign of each gradient.

    The gradients stay as they are: nothing says that a subject, which may step a copy, hands on what becomes of them.
    """

    def step(self, closure: Any = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        held = [
            (parameter, parameter.grad)
            for group in self.param_groups
            for parameter in group["params"]
            if parameter.grad is not None
        ]
        for parameter, given in held:
            parameter.grad = given.sign()
        super().step()
        for parameter, given in held:
            parameter.grad = given
        return loss


def unchanged(base: Any) -> Any:
    """Return a subclass that changes nothing."""
    return type(f"Unchanged{base.__name__}", (base,), {})
