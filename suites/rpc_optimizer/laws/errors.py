"""The laws of ``rpc-optimizer`` about errors."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
import torch.distributed.rpc as rpc
from everyrank.fixtures.optimizers import Invalid, Row, rows
from everyrank.suites.arena.subject_errors import in_a_line, subject_acts
from everyrank.suites.compare.comparison import check, same
from everyrank.suites.engine.contract import Point
from everyrank.suites.errors import Deviation
from everyrank.suites.rpc_optimizer import points
from everyrank.suites.rpc_optimizer.arena import Arena, Parameter, error_of, loss, non_leaf
from everyrank.suites.rpc_optimizer.contract import CONTRACT
from everyrank.suites.rpc_optimizer.laws.training import SGD
from everyrank.suites.rpc_optimizer.planted import (
    PLANTED,
    WORDS,
    arm,
    check_step_error,
    fail_to_build,
    step_while_held,
)

law = CONTRACT.law

FAILING = PLANTED["SGD"]


#: Owners in the order of their parameters. For each label, the owner that fails, and another that is slow.
OWNERS = (1, 2, 0)
_ONE = {"first": (1, 2), "middle": (2, 0), "last": (0, 1)}
_TWO = {"but-first": (2, 0), "but-middle": (1, 0), "but-last": (1, 2)}


@dataclass(frozen=True, kw_only=True)
class OneFailsPoint(Point):
    """A point with the owner that fails, and another that is slow."""

    failing: int
    slow: int


@dataclass(frozen=True, kw_only=True)
class TwoFailPoint(Point):
    """A point with the two owners that fail."""

    failing: tuple[int, int]


def _one_fails() -> Iterator[OneFailsPoint]:
    for label, (failing, slow) in _ONE.items():
        yield OneFailsPoint(label, 3, core=True, failing=failing, slow=slow)


def _two_fail() -> Iterator[TwoFailPoint]:
    for label, failing in _TWO.items():
        yield TwoFailPoint(label, 3, core=True, failing=failing)


def _owned(arena: Arena) -> list[Parameter]:
    return arena.own([(owner, (number + 2,)) for number, owner in enumerate(OWNERS)])


def _others_step(
    arena: Arena, healthy: Any, parameters: list[Parameter], failing: Collection[int], step: int
) -> None:
    """Step the reference: an owner that failed did not step and keeps its momentum, the others have stepped."""
    pairs = zip(parameters, arena.inputs(parameters, step), strict=True)
    for param in parameters:
        param.twin.grad = None
    torch.stack([loss(param.twin, data) for param, data in pairs if param.owner not in failing]).sum().backward()
    healthy.step()


@law("errors.constructor", _one_fails)
def constructor(arena: Arena, point: OneFailsPoint) -> None:
    """An error in a remote constructor reaches the caller with type, message and worker; nothing half-built stays."""
    parameters = _owned(arena)
    before = arena.values()
    fail_to_build(lambda kind, **kwargs: arena.build(kind, parameters, **kwargs), point.failing, range(3))
    for name, value in arena.values().items():
        same(value, before[name], f"{name}, after the refused construction")


@law("errors.step", _one_fails, groups=("STEPS", "EVERY_OWNER"))
def in_step(arena: Arena, point: OneFailsPoint) -> None:
    """A remote step's error reaches the caller with type and worker when all owners are done; the next one works."""
    parameters, failing = _owned(arena), point.failing
    with subject_acts():
        ours = arena.build(FAILING, parameters, lr=0.1, momentum=0.9)
    healthy = SGD([param.twin for param in parameters], lr=0.1, momentum=0.9)
    arena.step(ours, parameters, 1)
    arena.reference_step(healthy, parameters, 1)
    arena.on(failing, arm, WORDS[failing])
    raised = step_while_held(lambda: arena.attempt_step(ours, parameters, 2), point.slow, (1, 2))
    check(bool(raised), f"a step that fails on worker{failing} did not raise")
    check_step_error(raised[0], [failing])
    _others_step(arena, healthy, parameters, {failing}, 2)
    _check_next_step(arena, ours, healthy, parameters)


def _check_next_step(arena: Arena, ours: Any, healthy: Any, parameters: list[Parameter]) -> None:
    """After a second step that failed on some owners, check all values, and that the third step works."""
    comparison = arena.comparison()
    comparison.step(2, arena.values(), arena.twins())
    arena.step(ours, parameters, 3)
    arena.reference_step(healthy, parameters, 3)
    comparison.step(3, arena.values(), arena.twins())
    comparison.verdict()


@law("errors.several", _two_fail, groups=("STEPS", "EVERY_OWNER"))
def several(arena: Arena, point: TwoFailPoint) -> None:
    """When several workers fail, the error, of any type, names each with its own cause; later steps work."""
    parameters, failing = _owned(arena), point.failing
    with subject_acts():
        ours = arena.build(FAILING, parameters, lr=0.1, momentum=0.9)
    healthy = SGD([param.twin for param in parameters], lr=0.1, momentum=0.9)
    arena.step(ours, parameters, 1)
    arena.reference_step(healthy, parameters, 1)
    for owner in failing:
        arena.on(owner, arm, WORDS[owner])
    error = error_of(lambda: arena.attempt_step(ours, parameters, 2), "a step that fails on two workers")
    _others_step(arena, healthy, parameters, failing, 2)
    _check_next_step(arena, ours, healthy, parameters)
    check_step_error(error, failing)


@law("errors.unpicklable", lambda: points.plain(2))
def unpicklable(arena: Arena, point: Point) -> None:
    """The text of an exception that cannot be pickled still reaches the caller."""
    parameters = arena.own([(1, (3,))])
    with subject_acts():
        ours = arena.build(FAILING, parameters, lr=0.1, momentum=0.9)
    arena.on(1, arm, "unpicklable")
    error = error_of(
        lambda: arena.attempt_step(ours, parameters, 1), "a step that fails with an error that cannot travel"
    )
    check_step_error(error, [1], foreign=True)


@dataclass(frozen=True, kw_only=True)
class InvalidPoint(Point):
    """A point with arguments that an optimizer of the table refuses."""

    row: Row
    invalid: Invalid


_Parameters = Literal["empty-list", "non-leaf"]


@dataclass(frozen=True, kw_only=True)
class InvalidParametersPoint(Point):
    """A point with parameters that every optimizer refuses."""

    given: _Parameters


def _invalid_arguments() -> Iterator[InvalidPoint | InvalidParametersPoint]:
    for row in rows():
        if row.needs & {"closure", "sparse"}:
            continue
        for invalid in row.invalid:
            label, core = f"{row.name}-{invalid.name}", row.name == "SGD"
            yield InvalidPoint(label, 2, core=core, optimizer=row.name, row=row, invalid=invalid)
    given: _Parameters
    for given in get_args(_Parameters):
        yield InvalidParametersPoint(given, 2, core=True, given=given)


@law("errors.arguments", _invalid_arguments)
def arguments(arena: Arena, point: InvalidPoint | InvalidParametersPoint) -> None:
    """Invalid hyper-parameters, an empty list and a non-leaf raise the same type of error as in torch.optim."""
    if isinstance(point, InvalidParametersPoint):
        _refuses_parameters(arena, point.given)
        return
    row, invalid = point.row, point.invalid
    parameters = arena.own(points.shapes(row, [1, 1]))
    error = error_of(lambda: arena.build(row.optimizer, parameters, **invalid.make()), f"{invalid.name}")
    # A subject may have declared this error as its refusal: keep it as the cause.
    if not isinstance(error, invalid.error):
        raise Deviation(f"raises {type(error).__name__}, not {invalid.error.__name__}: {in_a_line(error)}") from error


def _refuses_parameters(arena: Arena, given: _Parameters) -> None:
    if given == "empty-list":
        error = error_of(lambda: arena.build(SGD, [], lr=0.1), "an empty list of parameters")
        check(isinstance(error, ValueError), f"an empty list raises {type(error).__name__}, not ValueError")
    else:
        parameters = arena.own([(1, (3,))])
        parameters[0].rref = rpc.remote("worker1", non_leaf, args=(parameters[0].rref,))
        error = error_of(lambda: arena.build(SGD, parameters, lr=0.1), "a parameter that is no leaf")
        check(isinstance(error, ValueError), f"a non-leaf raises {type(error).__name__}, not ValueError")


@law("wait", _one_fails, groups=("EVERY_OWNER",))
def wait(arena: Arena, point: OneFailsPoint) -> None:
    """step returns when the slowest owner is done, not earlier."""
    parameters = _owned(arena)
    with subject_acts():
        ours = arena.build(FAILING, parameters, lr=0.1, momentum=0.9)
    healthy = SGD([param.twin for param in parameters], lr=0.1, momentum=0.9)
    comparison = arena.comparison()
    for error in step_while_held(lambda: arena.attempt_step(ours, parameters, 1), point.slow, (1, 2)):
        raise Deviation(f"raised {in_a_line(error)}") from error
    arena.reference_step(healthy, parameters, 1)
    comparison.step(1, arena.values(), arena.twins())
    comparison.verdict()
