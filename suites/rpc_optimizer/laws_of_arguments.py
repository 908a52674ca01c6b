"""The laws of ``rpc-optimizer`` about what it is built with: arguments, and classes that are not torch's own."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from everyrank.fixtures.optimizers import Row
from everyrank.suites.acts import subject_acts
from everyrank.suites.contract import Point
from everyrank.suites.rpc_optimizer import points
from everyrank.suites.rpc_optimizer.arena import Arena
from everyrank.suites.rpc_optimizer.laws import CONTRACT, SHARED, compare_steps, of_row

law = CONTRACT.law


def _whole_list(row: Row) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments by position, off their defaults as in the table. The last one is moved: its loss shows."""
    moved = next((each for each in row.variants if each.name == "everything"), row.plain).make()
    by_position = [one for one in _documented(row) if one.kind is one.POSITIONAL_OR_KEYWORD]
    while by_position and by_position[-1].name not in moved:
        by_position.pop()
    return tuple(moved.get(one.name, one.default) for one in by_position), {}


def _defaults_by_name(row: Row) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Every argument of the class by keyword, with the default that it has there."""
    return (), {one.name: one.default for one in _documented(row) if one.default is not one.empty}


def _documented(row: Row) -> list[inspect.Parameter]:
    """The arguments of the class, but for the parameters and what stands for any others."""
    _, *arguments = inspect.signature(row.optimizer).parameters.values()
    return [one for one in arguments if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]


def _argument_lists() -> Iterator[Point]:
    for each in points.defaults():
        row: Row = each.values["row"]
        for name, arguments in (("positional", _whole_list), ("explicit-defaults", _defaults_by_name)):
            values = {"row": row, "arguments": arguments(row)}
            yield Point(f"{row.name}-{name}", 2, values, row.name in ("SGD", "Adam"), optimizer=row.name)


@law("parity.arguments", _argument_lists)
def arguments(place: Arena, point: Point) -> None:
    """Arguments by position, and defaults that are passed, have the effect that they have in torch.optim."""
    row: Row = point.values["row"]
    parameters = of_row(place, point)
    args, kwargs = point.values["arguments"]
    with subject_acts():
        ours = place.build(row.optimizer, parameters, *args, **kwargs)
    construct: Any = row.optimizer  # each class has a constructor of its own
    reference = construct([one.twin for one in parameters], *args, **kwargs)
    compare_steps(place, parameters, ours, reference, steps=3)


class DoNothing(torch.optim.SGD):
    """A subclass that changes nothing."""


class DoNothingAdagrad(torch.optim.Adagrad):
    """Another one."""


class OfAUser:
    """Whose class has its base's name."""

    class SGD(torch.optim.SGD):
        """Takes the sign of each gradient."""

        def step(self, closure: Any = None) -> Any:
            for parameter in self.param_groups[0]["params"]:
                if parameter.grad is not None:
                    parameter.grad = parameter.grad.sign()
            return super().step(closure)


def _subclasses() -> Iterator[Point]:
    """By label: the subclass, its arguments, and which parameters each step uses."""
    yield Point("", 2, {"optimizer": DoNothing, "reference": torch.optim.SGD}, core=True)
    yield Point("signed", 2, {"optimizer": OfAUser.SGD, "reference": OfAUser.SGD}, core=True)
    everyone, lr = [0, 1, 2], {"lr": 0.1}
    for label, chosen, keywords, used in (
        ("defaults", DoNothing, {}, [everyone]),
        ("none-gradient", DoNothingAdagrad, lr, [[1, 2], [1, 2]]),
        ("later-context", DoNothing, lr, [everyone, [1, 2]]),
    ):
        yield Point(label, 2, {"optimizer": chosen, "keywords": keywords, "used": used}, core=True)


@law("parity.subclass", _subclasses)
def subclass(place: Arena, point: Point) -> None:
    """A do-nothing subclass behaves as its base, also as the subject steps that; a step of its own is not lost."""
    if "used" in point.values:
        _as_its_base(place, point)
        return
    parameters = place.own(SHARED[:1])
    keywords = {"lr": 0.1, "momentum": 0.9}
    with subject_acts():
        ours = place.build(point.values["optimizer"], parameters, **keywords)
    reference = point.values["reference"]([one.twin for one in parameters], **keywords)
    compare_steps(place, parameters, ours, reference, steps=3)


def _as_its_base(place: Arena, point: Point) -> None:
    """The subject with the subclass, and with its base: the same steps over the same values."""
    chosen, other = point.values["optimizer"], replace(place, parameters=[])
    pairs = []
    for arena, optimizer in ((place, chosen), (other, chosen.__base__)):
        parameters = arena.own([(1, (3, 2))] * 3)
        with subject_acts():
            pairs.append((arena, arena.build(optimizer, parameters, **point.values["keywords"])))
    comparison = place.comparison()
    for step, numbers in enumerate(point.values["used"], 1):
        for arena, ours in pairs:
            arena.step(ours, [arena.parameters[number] for number in numbers], step)
        comparison.step(step, place.values(), other.values())
    comparison.verdict()
