"""The laws of ``rpc-optimizer`` about arguments of the optimizer, and about classes that are not torch's own."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from everyrank.fixtures.optimizers import Row
from everyrank.suites.arena.subject_errors import subject_acts
from everyrank.suites.engine.contract import Point
from everyrank.suites.errors import Deviation, Vacuous
from everyrank.suites.rpc_optimizer import points
from everyrank.suites.rpc_optimizer.arena import Arena
from everyrank.suites.rpc_optimizer.contract import CONTRACT
from everyrank.suites.rpc_optimizer.laws.training import SHARED, compare_steps, make_for_row
from everyrank.suites.rpc_optimizer.optimizers import DoNothing, OfAUser

law = CONTRACT.law


def _whole_list(row: Row) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments by position, with the table's values. The last is not a default: its loss shows."""
    moved = row.fullest.make()
    by_position = [argument for argument in _documented(row) if argument.kind is argument.POSITIONAL_OR_KEYWORD]
    while by_position and by_position[-1].name not in moved:
        by_position.pop()
    return tuple(moved.get(argument.name, argument.default) for argument in by_position), {}


def _defaults_by_name(row: Row) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return every argument of the class by keyword, with its default; if it has none, with the table's."""
    passed = row.variant("defaults").make()
    return (), {
        argument.name: passed.get(argument.name, argument.default)
        for argument in _documented(row)
        if argument.name in passed or argument.default is not argument.empty
    }


def _documented(row: Row) -> list[inspect.Parameter]:
    """Return the arguments of the class, except the parameters and the ``*`` and ``**`` arguments."""
    _, *arguments = inspect.signature(row.optimizer).parameters.values()
    return [
        argument for argument in arguments if argument.kind not in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD)
    ]


@dataclass(frozen=True, kw_only=True)
class ArgumentPoint(Point):
    """A point with an optimizer of the table, and its arguments by position and by keyword."""

    row: Row
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def _argument_lists() -> Iterator[ArgumentPoint]:
    for row in (default.row for default in points.defaults()):
        for name, arguments in (("positional", _whole_list), ("explicit-defaults", _defaults_by_name)):
            args, kwargs = arguments(row)
            label, core = f"{row.name}-{name}", row.name in ("SGD", "Adam")
            yield ArgumentPoint(label, 2, core=core, optimizer=row.name, row=row, args=args, kwargs=kwargs)


@law("parity.arguments", _argument_lists, groups=("STEPS",))
def arguments(arena: Arena, point: ArgumentPoint) -> None:
    """Arguments by position, and defaults that are passed explicitly, have the same effect as in torch.optim."""
    row, args, kwargs = point.row, point.args, point.kwargs
    parameters = make_for_row(arena, row)
    with subject_acts():
        ours = arena.build(row.optimizer, parameters, *args, **kwargs)
    construct: Any = row.optimizer  # each class has its own constructor
    reference = construct([param.twin for param in parameters], *args, **kwargs)
    compare_steps(arena, parameters, ours, reference, steps=3)


class DoNothingAdagrad(torch.optim.Adagrad):
    """A subclass of Adagrad that changes nothing."""


@dataclass(frozen=True, kw_only=True)
class SubclassPoint(Point):
    """A point with a subclass, and the class that the reference is built with."""

    subclass: type[torch.optim.Optimizer]
    reference: Any
    """A subclass of Optimizer. Each class has its own constructor."""


@dataclass(frozen=True, kw_only=True)
class UnchangedPoint(Point):
    """A point with a subclass that acts as its base does, its arguments, and the parameters that each step uses."""

    subclass: type[torch.optim.Optimizer]
    arguments: Mapping[str, Any]
    used: Sequence[Sequence[int]]


def _subclasses() -> Iterator[SubclassPoint | UnchangedPoint]:
    yield SubclassPoint("", 2, core=True, subclass=DoNothing, reference=torch.optim.SGD)
    yield SubclassPoint("signed", 2, core=True, subclass=OfAUser.SGD, reference=OfAUser.SGD)
    all_used, lr = [0, 1, 2], {"lr": 0.1}
    cases: list[tuple[str, type[torch.optim.Optimizer], dict[str, float], list[list[int]]]] = [
        ("defaults", DoNothing, {}, [all_used]),
        ("none-gradient", DoNothingAdagrad, lr, [[1, 2], [1, 2]]),
        ("later-context", DoNothing, lr, [all_used, [1, 2]]),
        # A decay moves what has a zero gradient, and not what has none.
        ("none-gradient-decay", DoNothing, {**lr, "weight_decay": 0.5}, [[1, 2], [1, 2]]),
    ]
    for label, chosen, arguments, used in cases:
        yield UnchangedPoint(label, 2, core=True, subclass=chosen, arguments=arguments, used=used)


@law("parity.subclass", _subclasses, groups=("STEPS",))
def subclass(arena: Arena, point: SubclassPoint | UnchangedPoint) -> None:
    """A subclass that changes nothing acts as its base does under the same subject; its own step() is not lost."""
    if isinstance(point, UnchangedPoint):
        _check_like_base(arena, point)
        return
    parameters = arena.own(SHARED[:1])
    keywords = {"lr": 0.1, "momentum": 0.9}
    with subject_acts():
        ours = arena.build(point.subclass, parameters, **keywords)
    reference = point.reference([param.twin for param in parameters], **keywords)
    compare_steps(arena, parameters, ours, reference, steps=3)


def _check_like_base(arena: Arena, point: UnchangedPoint) -> None:
    """Compare the subject with the subclass and with its base, over the same steps and values."""
    chosen, other = point.subclass, replace(arena, parameters=[])
    pairs = []
    for its_arena, optimizer in ((arena, chosen), (other, chosen.__base__)):
        parameters = its_arena.own([(1, (3, 2))] * 3)
        with subject_acts():
            pairs.append((its_arena, its_arena.build(optimizer, parameters, **point.arguments)))
    comparison = arena.comparison()
    for step, numbers in enumerate(point.used, 1):
        for its_arena, ours in pairs:
            its_arena.step(ours, [its_arena.parameters[number] for number in numbers], step)
        comparison.step(step, arena.values(), other.values())
    try:
        comparison.verdict()
    except Vacuous:
        # The base under the same subject stands for the reference: that it did not move is the subject's deviation.
        raise Deviation("the subclass and its base moved no parameter, whose gradients are not zero") from None
