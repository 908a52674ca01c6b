"""``parametrize`` for unittest classes: makes a method for each value, named as torch names it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

#: The attribute in which a method keeps its parameters, the outermost decorator first.
_PARAMETERS = "everyrank_parameters"


@dataclass
class subtest:
    """The values of one method, with its own name and decorators."""

    arg_values: Any
    name: str | None = None
    decorators: list[Callable[[Any], Any]] = field(default_factory=list)


@dataclass(frozen=True)
class _Choice:
    suffix: str
    values: dict[str, Any]
    decorators: tuple[Callable[[Any], Any], ...] = ()


class parametrize:
    """``@parametrize("x,y", [(1, 2), subtest((3, 4), name="three")])``; the class needs
    ``@instantiate_parametrized_tests``. Stacked decorators make a method for each combination of their values."""

    def __init__(self, arg_str: str, arg_values: Iterable[Any], name_fn: Callable[..., str] | None = None) -> None:
        self._names = [name.strip() for name in arg_str.split(",") if name.strip()]
        self._values = list(arg_values)
        self._name_fn = name_fn

    def __call__(self, method: Any) -> Any:
        if not self._values:
            raise ValueError(f"{method.__name__}: the list of values for {', '.join(self._names)} is empty")
        setattr(method, _PARAMETERS, [self, *getattr(method, _PARAMETERS, [])])
        return method

    def choices(self) -> Iterator[_Choice]:
        """Yield the values of each method, with the suffix of its name."""
        for index, values in enumerate(self._values):
            entry = values if isinstance(values, subtest) else subtest(values)
            arguments = list(entry.arg_values) if len(self._names) > 1 else [entry.arg_values]
            if len(arguments) != len(self._names):
                raise ValueError(f"{len(arguments)} values for the {len(self._names)} names {', '.join(self._names)}")
            suffix = entry.name or (self._name_fn(*arguments) if self._name_fn else self._suffix(index, arguments))
            yield _Choice(suffix, dict(zip(self._names, arguments, strict=True)), tuple(entry.decorators or ()))

    def _suffix(self, index: int, values: list[Any]) -> str:
        return "_".join(_name_part(index, name, value) for name, value in zip(self._names, values, strict=True))


def _name_part(index: int, name: str, value: Any) -> str:
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, torch.device):
        return str(value)
    if isinstance(value, (int, float, str)):
        return f"{name}_{str(value).replace('.', '_')}"
    return f"{name}{index}"


def instantiate_parametrized_tests(cls: Any) -> Any:
    """Replace each parametrized method of a class by a method for each of its values."""
    for name in dir(cls):
        method = inspect.getattr_static(cls, name)
        stacked: list[parametrize] = getattr(method, _PARAMETERS, [])
        if not stacked:
            continue
        if name in vars(cls):
            delattr(cls, name)
        else:
            setattr(cls, name, None)  # defined in a base class, whose instances keep it
        for choice in _product(stacked):
            full = f"{name}_{choice.suffix}"
            if hasattr(cls, full):
                raise ValueError(f"{cls.__name__} has two tests named {full}")
            setattr(cls, full, _instance(method, full, choice))
    return cls


def _product(stacked: list[parametrize]) -> Iterator[_Choice]:
    if len(stacked) == 1:
        yield from stacked[0].choices()
        return
    rest = list(_product(stacked[1:]))
    for inner in rest:
        for outer in stacked[0].choices():
            if repeated := set(outer.values) & set(inner.values):
                raise ValueError(f"parametrized twice: {', '.join(sorted(repeated))}")
            suffix = "_".join(part for part in (outer.suffix, inner.suffix) if part)
            yield _Choice(suffix, {**inner.values, **outer.values}, inner.decorators + outer.decorators)


def _instance(method: Any, name: str, choice: _Choice) -> Any:
    @functools.wraps(method)
    def instance(self: Any) -> Any:
        __tracebackhide__ = True
        return method(self, **choice.values)

    # pytest reads the signature through __wrapped__ and would take the parameters for fixtures.
    del instance.__wrapped__
    delattr(instance, _PARAMETERS)
    instance.__name__ = name
    decorated: Any = instance
    for decorator in choice.decorators:
        decorated = decorator(decorated)
    return decorated
