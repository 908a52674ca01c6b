"""The classes and arguments of the optimizers in a script of ``rpc-optimizer``."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from everyrank.suites.moves.options import zeros_of
from everyrank.suites.rpc_optimizer.model import Optimizer
from everyrank.suites.rpc_optimizer.planted import PLANTED


class DoNothing(torch.optim.SGD):
    """A subclass that changes nothing."""


class DoNothingAdagrad(torch.optim.Adagrad):
    """A subclass of Adagrad that changes nothing."""


class OfAUser:
    """A namespace for a class that has its base's name."""

    class SGD(torch.optim.SGD):
        """Takes the sign of each gradient."""

        def step(self, closure: Any = None) -> Any:
            for parameter in self.param_groups[0]["params"]:
                if parameter.grad is not None:
                    parameter.grad = parameter.grad.sign()
            return super().step(closure)


#: The classes of a user's own, and what each does in plain torch.
_CLASSES: dict[tuple[str, str], tuple[Any, Any]] = {
    ("subclass", "SGD"): (DoNothing, torch.optim.SGD),
    ("subclass", "Adagrad"): (DoNothingAdagrad, torch.optim.Adagrad),
    ("signed", "SGD"): (OfAUser.SGD, OfAUser.SGD),
}

#: What an optimizer without a learning rate of its own is built with, to load the one that counts.
_OTHER_RATE = 0.5


def moved(made: Optimizer, other_rate: bool = False) -> dict[str, Any]:
    """Return the arguments that are not left at their defaults, by name; fresh ones at each call.

    With ``other_rate`` the learning rate is another one.
    """
    named = made.row.variant(made.variant).make()
    if other_rate:
        named["lr"] = named["lr"] * 2 if "lr" in named else _OTHER_RATE
    return named


def arguments(made: Optimizer, other_rate: bool = False) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Return the class that the subject gets, and its arguments by position and by name."""
    kind = PLANTED[made.name] if made.own == "planted" else _kinds(made)[0]
    named = moved(made, other_rate)
    if made.given == "zeros":
        named = {**zeros_of(made.row.optimizer), **named}
    _, *documented = inspect.signature(made.row.optimizer).parameters.values()
    if made.given == "explicit":
        defaults = {
            argument.name: argument.default for argument in documented if argument.default is not argument.empty
        }
        return kind, (), {**defaults, **named}
    by_position = [argument for argument in documented if argument.kind is argument.POSITIONAL_OR_KEYWORD]
    while by_position and by_position[-1].name not in named:
        by_position.pop()
    if made.given in ("named", "zeros"):
        by_position = []
    return kind, tuple(named.pop(argument.name, argument.default) for argument in by_position), named


def in_plain_torch(
    made: Optimizer, parameters: Sequence[torch.Tensor], other_rate: bool = False
) -> torch.optim.Optimizer:
    """Build what does the same in one process."""
    _, args, kwargs = arguments(made, other_rate)
    built: torch.optim.Optimizer = _kinds(made)[1](parameters, *args, **kwargs)
    return built


def _kinds(made: Optimizer) -> tuple[Any, Any]:
    kind: Any = made.row.optimizer
    return _CLASSES.get((made.own, made.name), (kind, kind))
