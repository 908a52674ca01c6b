"""The laws of ``rpc-optimizer`` about values: how a step changes the parameters."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
import torch.distributed.autograd as dist_autograd
from everyrank.fixtures.optimizers import Row
from everyrank.suites.arena import first_step
from everyrank.suites.arena.points import OptimizerPoint
from everyrank.suites.arena.subject_errors import plainly, stayed, subject_acts
from everyrank.suites.compare.comparison import Comparison, check, same
from everyrank.suites.engine.contract import Point
from everyrank.suites.rpc_optimizer import points
from everyrank.suites.rpc_optimizer.arena import (
    Arena,
    Parameter,
    device_of,
    loss,
    repeated_sparse_loss,
    sparse_loss,
)
from everyrank.suites.rpc_optimizer.contexts import HeldContext, wait_until_closed
from everyrank.suites.rpc_optimizer.contract import CONTRACT
from everyrank.suites.rpc_optimizer.second_backward import step_after_each_backward

law = CONTRACT.law

SGD = torch.optim.SGD
SHARED = [(1, (3, 4)), (2, (5,)), (1, (2, 3)), (0, (4,))]


def plainest(arena: Arena) -> None:
    """Build over one parameter on the last worker, and do one step of SGD."""
    (param,) = arena.own([(arena.size - 1, (2,))])
    with plainly("build, with SGD over one parameter,"):
        ours = arena.build(SGD, [param], lr=0.1)
    stayed("the parameter", arena.on(param.owner, device_of, param.rref), "cpu")
    with dist_autograd.context() as context_id:
        dist_autograd.backward(context_id, [arena.remote_loss([param], arena.inputs([param], 1), loss)])
        with plainly("a step of SGD"):
            ours.step(context_id)
    stayed("the parameter", arena.on(param.owner, device_of, param.rref), "cpu")


def build_pair(arena: Arena, parameters: list[Parameter], point: OptimizerPoint) -> tuple[Any, Any]:
    """Build the subject and the reference, for a point that names an optimizer."""
    optimizer, variant = point.row.optimizer, point.variant
    with subject_acts():
        ours = arena.build(optimizer, parameters, **variant.make())
    return ours, optimizer([param.twin for param in parameters], **variant.make())


def compare_steps(
    arena: Arena, parameters: list[Parameter], ours: Any, reference: Any, steps: int, loss_function: Any = None
) -> Comparison:
    """Do these steps with the subject and the reference, and compare all parameters after each."""
    comparison = arena.comparison()
    comparison.keeps_first = steps > 1
    for step in range(1, steps + 1):
        # The calls of a step's forward pass bring the values after the step before it.
        values = arena.step(ours, parameters, step, loss_function, watched=arena.parameters if step > 1 else ())
        if step > 1:
            comparison.step(step - 1, arena.named(values), arena.twins())
        arena.reference_step(reference, parameters, step, loss_function)
    comparison.step(steps, arena.values(), arena.twins())
    comparison.verdict()
    return comparison


def make_for_row(arena: Arena, row: Row, dtype: torch.dtype = torch.float64) -> list[Parameter]:
    """Make parameters that this optimizer can take, on several owners."""
    owners = [1 + number % (arena.size - 1) for number in range(3)]
    return arena.own(points.shapes(row, [*owners, 0]), dtype)


@law("parity.one-step", points.variants, groups=("EVERY_OWNER",))
@first_step.first_step_of("parity.trajectory")
def one_step(arena: Arena, point: OptimizerPoint) -> None:
    """After one step, each parameter equals the reference, bit for bit."""
    if first_step.judged(arena.subject, point):
        return
    parameters = make_for_row(arena, point.row)
    compare_steps(arena, parameters, *build_pair(arena, parameters, point), steps=1)


@law("parity.trajectory", points.variants, groups=("STEPS", "EVERY_OWNER"))
def trajectory(arena: Arena, point: OptimizerPoint) -> None:
    """After each of 10 steps with new data, each parameter equals the reference, bit for bit."""
    parameters = make_for_row(arena, point.row)
    comparison = compare_steps(arena, parameters, *build_pair(arena, parameters, point), steps=10)
    first_step.keep(arena.subject, point, comparison)


@law("parity.defaults", points.defaults, groups=("STEPS",))
def defaults(arena: Arena, point: OptimizerPoint) -> None:
    """Without arguments, the defaults are those of torch.optim, in the second and third step too."""
    parameters = make_for_row(arena, point.row, torch.float32)
    compare_steps(arena, parameters, *build_pair(arena, parameters, point), steps=3)


_OWNERSHIP: dict[str, list[tuple[int, tuple[int, ...]]]] = {
    "one-owner": [(1, (3, 2)), (1, (4,)), (1, (2, 2))],
    "each-its-own": [(0, (3, 2)), (1, (4,)), (2, (2, 2))],
    "caller-only": [(0, (3, 2)), (0, (4,))],
    "interleaved": [(1, (3,)), (2, (4,)), (1, (2, 2)), (2, (5,)), (0, (1,)), (1, (2,))],
    "equal-shapes": [(1, (3,)), (2, (3,)), (1, (3,)), (2, (3,)), (0, (3,))],
}


@dataclass(frozen=True, kw_only=True)
class OwnershipPoint(Point):
    """A point with the owner and the shape of each parameter."""

    specs: list[tuple[int, tuple[int, ...]]]


def _ownerships() -> Iterator[OwnershipPoint]:
    for name, specs in _OWNERSHIP.items():
        yield OwnershipPoint(name, 3, core=True, specs=specs)


@law("parity.ownership", _ownerships, groups=("STEPS", "EVERY_OWNER"))
def ownership(arena: Arena, point: OwnershipPoint) -> None:
    """Each parameter gets its own update, whichever worker owns it, and in any order of the parameters."""
    parameters = arena.own(point.specs)
    with subject_acts():
        ours = arena.build(torch.optim.Adam, parameters, lr=0.1)
    compare_steps(arena, parameters, ours, torch.optim.Adam([param.twin for param in parameters], lr=0.1), steps=3)


@law("parity.dtype", points.dtypes, groups=("STEPS",))
def dtype(arena: Arena, point: points.DtypePoint) -> None:
    """fp32, fp64, bf16, complex (with all arguments), 0-dim and empty parameters are stepped as in torch.optim."""
    if point.shape is not None:
        parameters = arena.own([(1, (2, 2)), (1, point.shape), (1, (3,))], point.dtype)
    else:
        parameters = make_for_row(arena, point.row, point.dtype)
    compare_steps(arena, parameters, *build_pair(arena, parameters, point), steps=3)


@law("parity.sparse", points.sparse, groups=("STEPS",))
def sparse(arena: Arena, point: points.SparsePoint) -> None:
    """Sparse gradients, also of a row used twice, are applied as in torch.optim, if the optimizer takes them."""
    parameters = arena.own([(1, (6, 3)), (1, (4, 2))])
    loss_function = repeated_sparse_loss if point.twice else sparse_loss
    compare_steps(arena, parameters, *build_pair(arena, parameters, point), steps=3, loss_function=loss_function)


@law("none.frozen", lambda: points.plain(2), groups=("STEPS",))
def frozen(arena: Arena, point: Point) -> None:
    """A parameter without requires_grad never changes, in the loss or not, and the others get their own update."""
    first = arena.own([(1, (3,))])
    still = arena.own([(1, (3,))], requires_grad=False)
    last = arena.own([(1, (3,))])
    all_parameters = [*first, *still, *last]
    with subject_acts():
        ours = arena.build(SGD, all_parameters, lr=0.1, momentum=0.9, weight_decay=0.1)
    reference = SGD([param.twin for param in all_parameters], lr=0.1, momentum=0.9, weight_decay=0.1)
    comparison = arena.comparison()
    for step, used in ((1, [*first, *last]), (2, all_parameters)):
        arena.step(ours, used, step)
        arena.reference_step(reference, used, step)
        comparison.step(step, arena.values(), arena.twins())
    comparison.verdict()


@law("none.position", points.none_positions, groups=("STEPS",))
def position(arena: Arena, point: points.PositionPoint) -> None:
    """With a None gradient first, in the middle or last, the others are updated; if all are None, nothing changes."""
    parameters = arena.own([(owner, (3, 2)) for owner in (1, 1, 1, 0)])
    ours, reference = build_pair(arena, parameters, point)
    comparison = arena.comparison()
    for step, numbers in enumerate(point.used, 1):
        used = [parameters[number] for number in numbers]
        arena.step(ours, used, step)
        arena.reference_step(reference, used, step)
        comparison.step(step, arena.values(), arena.twins())
    comparison.verdict()


@law("none.with-decay", lambda: points.plain(2), groups=("STEPS",))
def with_decay(arena: Arena, point: Point) -> None:
    """A None gradient is not zero: the parameter does not change by decay or momentum."""
    parameters = arena.own([(1, (3,)), (1, (4,))])
    keywords: dict[str, Any] = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.5}
    with subject_acts():
        ours = arena.build(SGD, parameters, **keywords)
    reference = SGD([param.twin for param in parameters], **keywords)
    comparison = arena.comparison()
    for step in (1, 2):
        arena.step(ours, parameters[1:], step)
        arena.reference_step(reference, parameters[1:], step)
        comparison.step(step, arena.values(), arena.twins())
    comparison.verdict()


@dataclass(frozen=True, kw_only=True)
class ClassPoint(Point):
    """A point with an optimizer class and its arguments."""

    kind: type[torch.optim.Optimizer]
    arguments: Mapping[str, Any]


def _two_classes(**sgd_arguments: Any) -> Iterator[ClassPoint]:
    """Yield a class with a functional twin in torch and one without: torch's code has a path for each."""
    yield ClassPoint("", 2, core=True, kind=SGD, arguments={"lr": 0.1, **sgd_arguments})
    yield ClassPoint("NAdam", 2, core=True, optimizer="NAdam", kind=torch.optim.NAdam, arguments={"lr": 0.1})


def _build(arena: Arena, parameters: list[Parameter], point: ClassPoint) -> Any:
    with subject_acts():
        return arena.build(point.kind, parameters, **point.arguments)


@law("none.later-context", _two_classes)
def later_context(arena: Arena, point: ClassPoint) -> None:
    """A parameter used in context 1 and absent from context 2 does not change in step 2."""
    parameters = arena.own([(1, (3,)), (1, (3,))])
    ours = _build(arena, parameters, point)
    arena.step_that_moves(ours, parameters)
    before = parameters[0].value()
    arena.step(ours, parameters[1:], 2)
    same(parameters[0].value(), before, "the parameter that context 2 does not use")


@law("context.empty", lambda: _two_classes(momentum=0.9))
def empty(arena: Arena, point: ClassPoint) -> None:
    """A step with a context without any backward changes nothing."""
    parameters = arena.own([*SHARED[:1], (0, (2,))])
    ours = _build(arena, parameters, point)
    arena.step_that_moves(ours, parameters)
    before = arena.values()
    arena.step(ours, [], 2)
    for name, value in arena.values().items():
        same(value, before[name], f"{name}, after a step with an empty context")


@dataclass(frozen=True, kw_only=True)
class OwnPoint(Point):
    """A point that fixes whether the context gets more gradients after its first step, or a newer one is open."""

    second_backward: bool = False


def _contexts() -> Iterator[OwnPoint]:
    yield OwnPoint("", 2, core=True)
    yield OwnPoint("second-backward", 2, core=True, second_backward=True)


@law("context.own", _contexts, groups=("STEPS",))
def own(arena: Arena, point: OwnPoint) -> None:
    """step uses the gradients that the given context has now: also a second backward's, none of a newer context."""
    if point.second_backward:
        step_after_each_backward(arena)
        return
    parameters = arena.own([(1, (3,)), (1, (4,))])
    with subject_acts():
        ours = arena.build(SGD, parameters, lr=0.1)
    reference = SGD([param.twin for param in parameters], lr=0.1)
    comparison = arena.comparison()

    def backward(context_id: int, step: int) -> None:
        dist_autograd.backward(context_id, [arena.remote_loss(parameters, arena.inputs(parameters, step), loss)])

    with dist_autograd.context() as older:
        backward(older, 1)
        # A thread has only one context at a time, so another thread opens the newer one.
        with contextlib.closing(HeldContext(lambda newer: backward(newer, 2))), subject_acts():
            ours.step(older)
    arena.reference_step(reference, parameters, 1)
    comparison.step(1, arena.values(), arena.twins())
    comparison.verdict()


_Context = Literal["unknown", "closed"]


@dataclass(frozen=True, kw_only=True)
class ContextPoint(Point):
    """A point with a context that is not open."""

    context: _Context


def _invalid_contexts() -> Iterator[ContextPoint]:
    context: _Context
    for context in get_args(_Context):
        yield ContextPoint(context, 2, core=True, context=context)


@law("context.invalid", _invalid_contexts)
def invalid(arena: Arena, point: ContextPoint) -> None:
    """step with an unknown or closed context raises at the caller, and changes nothing."""
    parameters = arena.own([(1, (3,)), (0, (2,))])
    with subject_acts():
        ours = arena.build(SGD, parameters, lr=0.1, momentum=0.9)
    arena.step_that_moves(ours, parameters)
    before = arena.values()
    with dist_autograd.context() as context_id:
        dist_autograd.backward(context_id, [arena.remote_loss(parameters, arena.inputs(parameters, 2), loss)])
    wait_until_closed(context_id, {param.owner for param in parameters})
    wrong = context_id if point.context == "closed" else context_id + 12345
    try:
        ours.step(wrong)
    except Exception:
        pass
    else:
        check(False, f"step with {point.context} context id {wrong} did not raise")
    for name, value in arena.values().items():
        same(value, before[name], f"{name}, after the refused step")


@law("state.kept", lambda: points.plain(2), groups=("STEPS",))
def kept(arena: Arena, point: Point) -> None:
    """Optimizer state is kept across steps and contexts: momentum grows as in one long run."""
    parameters = arena.own([(1, (3,)), (1, (4,))])
    with subject_acts():
        ours = arena.build(SGD, parameters, lr=0.1, momentum=0.9)
    compare_steps(arena, parameters, ours, SGD([param.twin for param in parameters], lr=0.1, momentum=0.9), steps=5)


@dataclass(frozen=True, kw_only=True)
class OwnedPoint(ClassPoint):
    """A point that fixes whether a parameter that the optimizer was not given has a gradient before the step."""

    held: bool = False


def _owned() -> Iterator[OwnedPoint]:
    for point in _two_classes():
        yield OwnedPoint(**vars(point))
    yield OwnedPoint("held-gradient", 2, core=True, kind=SGD, arguments={"lr": 0.1}, held=True)


@law("owned.only", _owned)
def owned_only(arena: Arena, point: OwnedPoint) -> None:
    """Parameters that the optimizer was not given are not written to, their .grad included."""
    given = arena.own([(1, (3,))])
    other = arena.own([(1, (3,))])
    ours = _build(arena, given, point)
    arena.step_that_moves(ours, given)
    before = other[0].value()
    held = arena.on(1, hold_gradient, other[0].rref) if point.held else None
    arena.step(ours, [*given, *other], 2)
    same(other[0].value(), before, "a parameter that the optimizer was not given")
    found = arena.on(1, gradient_of, other[0].rref)
    text = "the .grad of a parameter that the optimizer was not given was"
    check(found is not None or held is None, f"{text} cleared")
    check(found is None or (held is not None and torch.equal(found, held)), f"{text} set")


def hold_gradient(rref: Any) -> torch.Tensor:
    """Give a parameter, on its owner, a gradient, and return that."""
    rref.local_value().grad = torch.ones_like(rref.local_value())
    return gradient_of(rref)  # type: ignore[return-value]


def gradient_of(rref: Any) -> torch.Tensor | None:
    """Return a copy of the gradient of a parameter, on its owner."""
    gradient = rref.local_value().grad
    return None if gradient is None else gradient.clone()
