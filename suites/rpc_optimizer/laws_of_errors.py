"""The laws of ``rpc-optimizer`` about what goes wrong."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from everyrank.fixtures.optimizers import rows
from everyrank.suites.acts import subject_acts
from everyrank.suites.compare import check, same
from everyrank.suites.contract import Point
from everyrank.suites.rpc_optimizer import points
from everyrank.suites.rpc_optimizer.arena import Arena, Parameter, error_of, eventually, loss
from everyrank.suites.rpc_optimizer.laws import CONTRACT, SGD

law = CONTRACT.law


class OnePicky(Exception):
    """An error whose pickle cannot be rebuilt on the other side."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


class Failing(torch.optim.SGD):
    """Fails where it is told to, by the name of the worker that it lives on."""

    alive: ClassVar[weakref.WeakSet[Failing]] = weakref.WeakSet()
    #: Worker -> the errors of its next steps; filled by ``arm``.
    armed: ClassVar[dict[str, list[str]]] = {}

    def __init__(self, params: Any, lr: float = 0.1, at_construction: tuple[str, ...] = ()) -> None:
        super().__init__(params, lr=lr, momentum=0.9)
        here = rpc.get_worker_info().name
        Failing.alive.add(self)
        if here in at_construction:
            raise ValueError(f"cannot be built: sabotaged at {here}")

    def step(self, closure: Any = None) -> Any:
        here = rpc.get_worker_info().name
        errors = Failing.armed.get(here, [])
        if errors:
            kind = errors.pop(0)
            if kind == "unpicklable":
                raise OnePicky("step", "sabotaged")
            raise ValueError(f"step sabotaged at {here}")
        return super().step(closure)


def arm(kind: str) -> None:
    """On an owner: its next step fails."""
    Failing.armed.setdefault(rpc.get_worker_info().name, []).append(kind)


def alive() -> int:
    """On an owner: how many optimizers of ours live there."""
    gc.collect()
    return len(Failing.alive)


def _stepping(place: Arena, ours: Any, parameters: list[Parameter], step: int) -> Callable[[], None]:
    def action() -> None:
        with dist_autograd.context() as context_id:
            total = place.remote_loss(parameters, place.inputs(parameters, step), loss)
            dist_autograd.backward(context_id, [total])
            ours.step(context_id)

    return action


@law("errors.constructor", lambda: points.plain(3))
def constructor(place: Arena, point: Point) -> None:
    """An error in a remote constructor reaches the caller: type, message, worker; nothing half-built stays."""
    parameters = place.own([(1, (3,)), (2, (4,)), (0, (2,))])
    before = place.values()
    error = error_of(
        lambda: place.build(Failing, parameters, at_construction=("worker1",)), "a constructor that fails on worker1"
    )
    check(isinstance(error, ValueError), f"the error is a {type(error).__name__}, not a ValueError")
    check("cannot be built" in str(error), f"the error's text does not tell the cause: {error}")
    check("worker1" in str(error), f"the error's text does not name worker1: {error}")
    error.__traceback__ = None
    del error
    gc.collect()
    for owner in (0, 1, 2):
        left = eventually(lambda owner=owner: place.on(owner, alive) == 0)  # type: ignore[misc]
        check(left, f"an optimizer that was half built still lives on worker{owner}")
    for name, value in place.values().items():
        same(value, before[name], f"{name}, after the refused construction")


@law("errors.step", lambda: points.plain(3))
def in_step(place: Arena, point: Point) -> None:
    """An error in a remote step reaches the caller with type and worker, after all owners are done; then it works."""
    parameters = place.own([(1, (3,)), (2, (4,)), (0, (2,))])
    with subject_acts():
        ours = place.build(Failing, parameters)
    healthy = SGD([one.twin for one in parameters], lr=0.1, momentum=0.9)
    place.step(ours, parameters, 1)
    place.reference_step(healthy, parameters, 1)
    place.on(1, arm, "value")
    error = error_of(_stepping(place, ours, parameters, 2), "a step that fails on worker1")
    check(isinstance(error, ValueError), f"the error is a {type(error).__name__}, not a ValueError")
    check("worker1" in str(error), f"the error's text does not name worker1: {error}")
    # worker1 did not step: its twin keeps its place and its momentum; the others are done.
    inputs = place.inputs(parameters, 2)
    for one in parameters:
        one.twin.grad = None
    torch.stack([loss(one.twin, data) for one, data in zip(parameters[1:], inputs[1:], strict=True)]).sum().backward()
    healthy.step()
    comparison = place.comparison()
    comparison.step(2, place.values(), place.twins())
    place.step(ours, parameters, 3)
    place.reference_step(healthy, parameters, 3)
    comparison.step(3, place.values(), place.twins())
    comparison.verdict()


@law("errors.several", lambda: points.plain(3))
def several(place: Arena, point: Point) -> None:
    """When several workers fail, all are reported, each under its own name."""
    parameters = place.own([(1, (3,)), (2, (4,))])
    with subject_acts():
        ours = place.build(Failing, parameters)
    for owner in (1, 2):
        place.on(owner, arm, "value")
    error = error_of(_stepping(place, ours, parameters, 1), "a step that fails on two workers")
    for name in ("worker1", "worker2"):
        check(f"sabotaged at {name}" in str(error), f"the error does not report {name}: {error}")


@law("errors.unpicklable", lambda: points.plain(2))
def unpicklable(place: Arena, point: Point) -> None:
    """An exception that cannot travel still arrives, as text."""
    parameters = place.own([(1, (3,))])
    with subject_acts():
        ours = place.build(Failing, parameters)
    place.on(1, arm, "unpicklable")
    error = error_of(_stepping(place, ours, parameters, 1), "a step that fails with an error that cannot travel")
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
    check(isinstance(error, invalid.error), f"raises {type(error).__name__}, not {invalid.error.__name__}: {error}")


def non_leaf(rref: Any) -> torch.Tensor:
    """On an owner."""
    result: torch.Tensor = rref.local_value() * 2
    return result
