"""The laws of ``rpc-optimizer`` about what goes wrong."""

from __future__ import annotations

import gc
import re
from collections.abc import Collection, Iterator
from typing import Any

import torch
import torch.distributed.rpc as rpc
from everyrank.fixtures.optimizers import rows
from everyrank.suites.acts import in_a_line, subject_acts
from everyrank.suites.compare import check, same
from everyrank.suites.contract import Point
from everyrank.suites.errors import Deviation
from everyrank.suites.rpc_optimizer import points
from everyrank.suites.rpc_optimizer.arena import Arena, Parameter, error_of, eventually, loss
from everyrank.suites.rpc_optimizer.laws import CONTRACT, SGD
from everyrank.suites.rpc_optimizer.planted import WORDS, Failing, alive, arm, make_step, step_while_held

law = CONTRACT.law


#: Owners in the order of their parameters. By label: who fails, and another, who is slow.
OWNERS = (1, 2, 0)
_ONE = {"first": (1, 2), "middle": (2, 0), "last": (0, 1)}
_TWO = {"but-first": (2, 0), "but-middle": (1, 0), "but-last": (1, 2)}


def _one_fails() -> Iterator[Point]:
    for label, (failing, slow) in _ONE.items():
        yield Point(label, 3, {"failing": failing, "slow": slow}, core=True)


def _two_fail() -> Iterator[Point]:
    for label, failing in _TWO.items():
        yield Point(label, 3, {"failing": failing}, core=True)


def _owned(place: Arena) -> list[Parameter]:
    return place.own([(owner, (number + 2,)) for number, owner in enumerate(OWNERS)])


def _others_step(
    place: Arena, healthy: Any, parameters: list[Parameter], failing: Collection[int], step: int
) -> None:
    """In the reference: who failed did not step, and keeps its momentum; the others are done."""
    pairs = zip(parameters, place.inputs(parameters, step), strict=True)
    for one in parameters:
        one.twin.grad = None
    torch.stack([loss(one.twin, data) for one, data in pairs if one.owner not in failing]).sum().backward()
    healthy.step()


@law("errors.constructor", _one_fails)
def constructor(place: Arena, point: Point) -> None:
    """An error in a remote constructor reaches the caller: type, message, worker; nothing half-built stays."""
    parameters, name = _owned(place), f"worker{point.values['failing']}"
    before = place.values()
    error = error_of(
        lambda: place.build(Failing, parameters, at_construction=(name,)), f"a constructor that fails on {name}"
    )
    check(isinstance(error, ValueError), f"the error is a {type(error).__name__}, not a ValueError")
    check("cannot be built" in str(error), f"the error's text does not tell the cause: {error}")
    check(name in str(error), f"the error's text does not name {name}: {error}")
    error.__traceback__ = None
    del error
    gc.collect()
    for owner in (0, 1, 2):
        left = eventually(lambda owner=owner: place.on(owner, alive) == 0)  # type: ignore[misc]
        check(left, f"an optimizer that was half built still lives on worker{owner}")
    for name, value in place.values().items():
        same(value, before[name], f"{name}, after the refused construction")


@law("errors.step", _one_fails)
def in_step(place: Arena, point: Point) -> None:
    """An error in a remote step reaches the caller with type and worker, after all owners are done; then it works."""
    parameters, failing = _owned(place), point.values["failing"]
    with subject_acts():
        ours = place.build(Failing, parameters)
    healthy = SGD([one.twin for one in parameters], lr=0.1, momentum=0.9)
    place.step(ours, parameters, 1)
    place.reference_step(healthy, parameters, 1)
    place.on(failing, arm, WORDS[failing])
    raised = step_while_held(place, ours, parameters, 2, point.values["slow"])
    check(bool(raised), f"a step that fails on worker{failing} did not raise")
    (error,) = raised
    check(isinstance(error, ValueError), f"the error is a {type(error).__name__}, not a ValueError")
    check(f"worker{failing}" in str(error), f"the error's text does not name worker{failing}: {error}")
    _others_step(place, healthy, parameters, {failing}, 2)
    _goes_on(place, ours, healthy, parameters)


def _goes_on(place: Arena, ours: Any, healthy: Any, parameters: list[Parameter]) -> None:
    """After a second step that has failed on some owners: all are where they should be, and the third step works."""
    comparison = place.comparison()
    comparison.step(2, place.values(), place.twins())
    place.step(ours, parameters, 3)
    place.reference_step(healthy, parameters, 3)
    comparison.step(3, place.values(), place.twins())
    comparison.verdict()


@law("errors.several", _two_fail)
def several(place: Arena, point: Point) -> None:
    """When several workers fail, all are reported, each under its own name; then it works."""
    parameters, failing = _owned(place), point.values["failing"]
    with subject_acts():
        ours = place.build(Failing, parameters)
    healthy = SGD([one.twin for one in parameters], lr=0.1, momentum=0.9)
    place.step(ours, parameters, 1)
    place.reference_step(healthy, parameters, 1)
    for owner in failing:
        place.on(owner, arm, WORDS[owner])
    error = error_of(lambda: make_step(place, ours, parameters, 2), "a step that fails on two workers")
    _others_step(place, healthy, parameters, failing, 2)
    _goes_on(place, ours, healthy, parameters)
    text = str(error)
    for owner in failing:
        check(f"worker{owner}" in text, f"the error does not name worker{owner}: {text}")
        check(WORDS[owner] in text, f"the error does not say what went wrong on worker{owner}: {text}")
    check(each_under_its_name(text, failing), f"an error stands under another worker's name: {text}")


def each_under_its_name(text: str, failing: Collection[int]) -> bool:
    """Whether each error follows its worker's name, or each comes before it."""
    before = after = True
    for owner in failing:
        head, _, tail = text.partition(WORDS[owner])
        names = re.findall(r"worker\d+", head)[-1:], re.findall(r"worker\d+", tail)[:1]
        before, after = before and names[0] == [f"worker{owner}"], after and names[1] == [f"worker{owner}"]
    return before or after


@law("errors.unpicklable", lambda: points.plain(2))
def unpicklable(place: Arena, point: Point) -> None:
    """An exception that cannot travel still arrives, as text."""
    parameters = place.own([(1, (3,))])
    with subject_acts():
        ours = place.build(Failing, parameters)
    place.on(1, arm, "unpicklable")
    error = error_of(
        lambda: make_step(place, ours, parameters, 1), "a step that fails with an error that cannot travel"
    )
    check("step sabotaged" in str(error), f"the text of the error was lost: {type(error).__name__}: {error}")


def _invalid_arguments() -> Any:
    for row in rows():
        if row.needs & {"closure", "sparse"}:
            continue
        for invalid in row.invalid:
            label = f"{row.name}-{invalid.name}"
            yield Point(label, 2, {"row": row, "invalid": invalid}, row.name == "SGD", "", row.name)
    for name in ("empty-list", "non-leaf"):
        yield Point(name, 2, {"special": name}, True)


@law("errors.arguments", _invalid_arguments)
def arguments(place: Arena, point: Point) -> None:
    """Invalid hyper-parameters raise what torch.optim raises; so do an empty list and a non-leaf."""
    if point.values.get("special") == "empty-list":
        error = error_of(lambda: place.build(SGD, [], lr=0.1), "an empty list of parameters")
        check(isinstance(error, ValueError), f"an empty list raises {type(error).__name__}, not ValueError")
        return
    if point.values.get("special") == "non-leaf":
        parameters = place.own([(1, (3,))])
        parameters[0].rref = rpc.remote("worker1", non_leaf, args=(parameters[0].rref,))
        error = error_of(lambda: place.build(SGD, parameters, lr=0.1), "a parameter that is no leaf")
        check(isinstance(error, ValueError), f"a non-leaf raises {type(error).__name__}, not ValueError")
        return
    row, invalid = point.values["row"], point.values["invalid"]
    parameters = place.own(points.shapes(row, [1, 1]))
    error = error_of(lambda: place.build(row.optimizer, parameters, **invalid.make()), f"{invalid.name}")
    if not isinstance(error, invalid.error):  # the error goes along: a subject may have declared that it refuses so
        raise Deviation(f"raises {type(error).__name__}, not {invalid.error.__name__}: {in_a_line(error)}") from error


def non_leaf(rref: Any) -> torch.Tensor:
    """On an owner."""
    result: torch.Tensor = rref.local_value() * 2
    return result


@law("wait", _one_fails)
def wait(place: Arena, point: Point) -> None:
    """step returns when the slowest owner is done, and not before."""
    parameters = _owned(place)
    with subject_acts():
        ours = place.build(Failing, parameters)
    healthy = SGD([one.twin for one in parameters], lr=0.1, momentum=0.9)
    comparison = place.comparison()
    for error in step_while_held(place, ours, parameters, 1, point.values["slow"]):
        raise Deviation(f"raised {in_a_line(error)}") from error
    place.reference_step(healthy, parameters, 1)
    comparison.step(1, place.values(), place.twins())
    comparison.verdict()
