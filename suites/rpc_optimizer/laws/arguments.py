"""The laws of ``rpc-optimizer`` about arguments of the optimizer, and about classes that are not torch's own."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from everyrank.fixtures.optimizers import Row
from everyrank.suites.arena.subject_errors import subject_acts
from everyrank.suites.engine.contract import Point
from everyrank.suites.rpc_optimizer import points
from everyrank.suites.rpc_optimizer.arena import Arena
from everyrank.suites.rpc_optimizer.contract import CONTRACT
from everyrank.suites.rpc_optimizer.laws.training import SHARED, compare_steps, make_for_row

law = CONTRACT.law


def _whole_list(row: Row) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments by position, with the table's values. The last is not a default: its loss shows."""
    moved = next((variant for variant in row.variants if variant.name == "everything"), row.plain).make()
    by_position = [argument for argument in _documented(row) if argument.kind is argument.POSITIONAL_OR_KEYWORD]
    while by_position and by_position[-1].name not in moved:
        by_position.pop()
    return tuple(moved.get(argument.name, argument.default) for argument in by_position), {}


def _defaults_by_name(row: Row) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return every argument of the class by keyword, with its default."""
    return (), {
        argument.name: argument.default for argument in _documented(row) if argument.default is not argument.empty
    }


def _documented(row: Row) -> list[inspect.Parameter]:
    """Return the arguments of the class, except the parameters and the ``*`` and ``**`` arguments."""
    _, *arguments = inspect.signature(row.optimizer).parameters.values()
    return [
        argument for argument in arguments if argument.kind not in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD)
    ]


def _argument_lists() -> Iterator[Point]:
    for default in points.defaults():
        row: Row = default.values["row"]
        for name, arguments in (("positional", _whole_list), ("explicit-defaults", _defaults_by_name)):
            values = {"row": row, "arguments": arguments(row)}
            yield Point(f"{row.name}-{name}", 2, values, row.name in ("SGD", "Adam"), optimizer=row.name)


@law("parity.arguments", _argument_lists, groups=("STEPS",))
def arguments(arena: Arena, point: Point) -> None:
    """Arguments by position, and defaults that are passed explicitly, have the same effect as in torch.optim."""
    row: Row = point.values["row"]
    parameters = make_for_row(arena, point)
    args, kwargs = point.values["arguments"]
    with subject_acts():
        ours = arena.build(row.optimizer, parameters, *args, **kwargs)
    construct: Any = row.optimizer  # each class has its own constructor
    reference = construct([param.twin for param in parameters], *args, **kwargs)
    compare_steps(arena, parameters, ours, reference, steps=3)


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


def _subclasses() -> Iterator[Point]:
    """Yield a subclass with its arguments and the parameters that each step uses."""
    yield Point("", 2, {"optimizer": DoNothing, "reference": torch.optim.SGD}, core=True)
    yield Point("signed", 2, {"optimizer": OfAUser.SGD, "reference": OfAUser.SGD}, core=True)
    all_used, lr = [0, 1, 2], {"lr": 0.1}
    for label, chosen, keywords, used in (
        ("defaults", DoNothing, {}, [all_used]),
        ("none-gradient", DoNothingAdagrad, lr, [[1, 2], [1, 2]]),
        ("later-context", DoNothing, lr, [all_used, [1, 2]]),
    ):
        yield Point(label, 2, {"optimizer": chosen, "keywords": keywords, "used": used}, core=True)


@law("parity.subclass", _subclasses, groups=("STEPS",))
def subclass(arena: Arena, point: Point) -> None:
    """A subclass that changes nothing acts as its base does under the same subject; its own step() is not lost."""
    if "used" in point.values:
        _check_like_base(arena, point)
        return
    parameters = arena.own(SHARED[:1])
    keywords = {"lr": 0.1, "momentum": 0.9}
    with subject_acts():
        ours = arena.build(point.values["optimizer"], parameters, **keywords)
    reference = point.values["reference"]([param.twin for param in parameters], **keywords)
    compare_steps(arena, parameters, ours, reference, steps=3)


def _check_like_base(arena: Arena, point: Point) -> None:
    """Compare the subject with the subclass and with its base, over the same steps and values."""
    chosen, other = point.values["optimizer"], replace(arena, parameters=[])
    pairs = []
    for its_arena, optimizer in ((arena, chosen), (other, chosen.__base__)):
        parameters = its_arena.own([(1, (3, 2))] * 3)
        with subject_acts():
            pairs.append((its_arena, its_arena.build(optimizer, parameters, **point.values["keywords"])))
    comparison = arena.comparison()
    for step, numbers in enumerate(point.values["used"], 1):
        for its_arena, ours in pairs:
            its_arena.step(ours, [its_arena.parameters[number] for number in numbers], step)
        comparison.step(step, arena.values(), other.values())
    comparison.verdict()
