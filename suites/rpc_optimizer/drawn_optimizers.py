"""The classes and arguments of the optimizers in a draw of ``rpc-optimizer``."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from everyrank.fixtures.optimizers import row
from everyrank.suites.rpc_optimizer import grammar as g
from everyrank.suites.rpc_optimizer.laws.arguments import DoNothing, OfAUser
from everyrank.suites.rpc_optimizer.laws.training import SGD
from everyrank.suites.rpc_optimizer.sabotaging import Counted

#: The classes of a user's own, and what each does in plain torch.
_CLASSES: dict[str, Any] = {"subclass": DoNothing, "signed": OfAUser.SGD, "planted": Counted}
_BASES: dict[str, Any] = {"subclass": SGD, "signed": OfAUser.SGD, "planted": SGD}

#: What an optimizer without a learning rate of its own is built with, to load the one that counts.
_OTHER_RATE = 0.5


def moved(given: g.Optimizer) -> dict[str, Any]:
    """Return the arguments that are not left at their defaults, by name; fresh ones at each call."""
    return {"lr": 0.1} if given.own == "planted" else row(given.name).variant(given.variant).make()


def arguments(given: g.Optimizer, other_rate: bool = False) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Return the class that the subject gets, and its arguments by position and by name.

    With ``other_rate`` the learning rate is not that of the draw.
    """
    kind: Any = _CLASSES[given.own] if given.own else row(given.name).optimizer
    named = moved(given)
    if other_rate:
        named["lr"] = named["lr"] * 2 if "lr" in named else _OTHER_RATE
    if given.own == "planted":
        return kind, (), named
    _, *documented = inspect.signature(row(given.name).optimizer).parameters.values()
    if given.given == "explicit":
        defaults = {
            argument.name: argument.default for argument in documented if argument.default is not argument.empty
        }
        return kind, (), {**defaults, **named}
    by_position = [argument for argument in documented if argument.kind is argument.POSITIONAL_OR_KEYWORD]
    while by_position and by_position[-1].name not in named:
        by_position.pop()
    if given.given == "named":
        by_position = []
    return kind, tuple(named.pop(argument.name, argument.default) for argument in by_position), named


def in_plain_torch(given: g.Optimizer, parameters: Sequence[torch.Tensor]) -> torch.optim.Optimizer:
    """Build what does the same in one process."""
    _, args, kwargs = arguments(given)
    base: Any = _BASES[given.own] if given.own else row(given.name).optimizer
    extra = {"momentum": 0.9} if given.own == "planted" else {}
    built: torch.optim.Optimizer = base(parameters, *args, **kwargs, **extra)
    return built
