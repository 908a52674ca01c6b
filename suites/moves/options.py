"""The options of an optimizer's groups, by the signature of its class, and how scripts change them by hand."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Collection, Mapping
from typing import Any

import torch

#: Options of few optimizers, which can be changed at any time.
FURTHER = ("momentum", "dampening", "nesterov", "alpha", "rho", "lr_decay")


def defaults_of(kind: Any) -> Mapping[str, Any]:
    """Return the arguments of an optimizer's class by name, each with its default."""
    return _defaults_of(kind)


@functools.cache  # behind a function: to mypy a class is not hashable
def _defaults_of(kind: Any) -> Mapping[str, Any]:
    return {each.name: each.default for each in inspect.signature(kind).parameters.values()}


def further(kind: Any) -> list[str]:
    """Return those of ``FURTHER`` that an optimizer has."""
    known = defaults_of(kind)
    return [name for name in FURTHER if name in known]


def zeros_of(kind: Any) -> dict[str, float]:
    """Return a zero for each number that has another default and may be zero; a step by no rate shows nothing."""
    return dict(_zeros_of(kind))


@functools.cache
def _zeros_of(kind: Any) -> dict[str, float]:
    found = {}
    for name, value in defaults_of(kind).items():
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if number and value and name not in ("lr", "eps") and _takes(kind, {name: type(value)(0)}):
            found[name] = type(value)(0)
    return found


def _takes(kind: Any, arguments: dict[str, Any]) -> bool:
    try:
        kind([torch.zeros(1, 1, requires_grad=True)], **arguments)
    except Exception:
        return False
    return True


def can_be_set(kind: Any, option: str, to: str) -> bool:
    """Return whether ``set_option`` can set it so."""
    return isinstance(_value(kind, option, to), (int, float))


def _value(kind: Any, option: str, to: str) -> Any:
    default = defaults_of(kind).get(option)
    if to == "whole":
        return None if isinstance(default, bool) else 1
    return 0.0 if to == "zero" else default


def set_option(groups: Collection[dict[str, Any]], option: str, factor: float, kind: Any, to: str = "") -> None:
    """Multiply an option by hand; turn a flag over, and halve decay rates; 0 becomes an eighth.

    ``to``: set it to ``zero``, to the ``default`` of this class of optimizers, or to a ``whole`` number, an int.
    """
    for group in groups:
        value = group[option]
        if torch.is_tensor(value):
            value.copy_(torch.full_like(value, _value(kind, option, to)) if to else value * factor)
        elif to:
            chosen = _value(kind, option, to)
            group[option] = chosen if to == "whole" else type(value)(chosen)
        elif isinstance(value, bool):
            group[option] = not value
        elif isinstance(value, (tuple, list)):
            group[option] = tuple(part / 2 for part in value)
        else:
            group[option] = value * factor or 0.125
