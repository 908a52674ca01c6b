"""The laws of ``rpc-optimizer`` about what it is built with: arguments, and classes that are not torch's own."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from everyrank.fixtures.optimizers import Row
from everyrank.suites.acts import subject_acts
from everyrank.suites.contract import Point
from everyrank.suites.rpc_optimizer import points
from everyrank.suites.rpc_optimizer.arena import Arena
from everyrank.suites.rpc_optimizer.laws import CONTRACT, SGD, SHARED, compare_steps, of_row

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


@law("parity.subclass", lambda: points.plain(2))
def subclass(place: Arena, point: Point) -> None:
    """A do-nothing subclass behaves as its base."""
    parameters = place.own(SHARED[:1])
    with subject_acts():
        ours = place.build(DoNothing, parameters, lr=0.1, momentum=0.9)
    compare_steps(place, parameters, ours, SGD([one.twin for one in parameters], lr=0.1, momentum=0.9), steps=3)
