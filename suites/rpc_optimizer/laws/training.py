"""The laws of ``rpc-optimizer`` about values: how a step changes the parameters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from everyrank.fixtures.optimizers import Row
from everyrank.suites.arena import first_step
from everyrank.suites.arena.points import OptimizerPoint
from everyrank.suites.arena.subject_errors import plainly, stayed
from everyrank.suites.compare.comparison import check
from everyrank.suites.engine.contract import Point
from everyrank.suites.rpc_optimizer import points
from everyrank.suites.rpc_optimizer.arena import Arena
from everyrank.suites.rpc_optimizer.contract import CONTRACT
from everyrank.suites.rpc_optimizer.law_player import follow, of_point, optimizer, playing
from everyrank.suites.rpc_optimizer.model import Optimizer, Param
from everyrank.suites.rpc_optimizer.owners import device_of, gradient_was
from everyrank.suites.rpc_optimizer.second_backward import step_after_each_backward

law = CONTRACT.law

SGD = torch.optim.SGD

#: Two parameters of one owner.
TWO = (Param(1, (3,)), Param(1, (4,)))


def plainest(arena: Arena) -> None:
    """Build over one parameter on the last worker, and do one step of SGD."""
    with playing(arena, [Param(arena.size - 1, (2,))], compared=False) as player:
        sides = player.sides
        with plainly("build, with SGD over one parameter,"):
            ours = sides.build_over(SGD, sides.rrefs([0]), lr=0.1)
        stayed("the parameter", sides.on_owner(0, device_of), "cpu")
        with plainly("a step of SGD"):
            sides.step_in_own_context(ours, sides.data([0], 1))
        stayed("the parameter", sides.on_owner(0, device_of), "cpu")


def params_for(arena: Arena, row: Row) -> list[Param]:
    """Return parameters that this optimizer can take, of several owners: the caller owns the last."""
    return points.params_for(row, [*(1 + number % (arena.size - 1) for number in range(3)), 0])


@law("parity.one-step", points.variants, groups=("EVERY_OWNER",))
@first_step.first_step_of("parity.trajectory")
def one_step(arena: Arena, point: OptimizerPoint) -> None:
    """After one step, each parameter equals the reference, bit for bit."""
    if first_step.judged(arena.subject, point):
        return
    follow(arena, params_for(arena, point.row), of_point(point), steps=1)


@law("parity.trajectory", points.variants, groups=("STEPS", "EVERY_OWNER"))
def trajectory(arena: Arena, point: OptimizerPoint) -> None:
    """After each of 10 steps with new data, each parameter equals the reference, bit for bit."""
    comparison = follow(arena, params_for(arena, point.row), of_point(point), steps=10)
    first_step.keep(arena.subject, point, comparison)


@law("parity.defaults", points.defaults, groups=("STEPS",))
def defaults(arena: Arena, point: OptimizerPoint) -> None:
    """Without arguments, the defaults are those of torch.optim, in the second and third step too."""
    follow(arena, params_for(arena, point.row), of_point(point), steps=3, dtype=torch.float32)


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
    follow(arena, [Param(*spec) for spec in point.specs], optimizer("Adam"), steps=3)


@law("parity.dtype", points.dtypes, groups=("STEPS",))
def dtype(arena: Arena, point: points.DtypePoint) -> None:
    """fp32, fp64, bf16, complex (with all arguments), 0-dim and empty parameters are stepped as in torch.optim."""
    params = params_for(arena, point.row)
    if point.shape is not None:
        params = [Param(1, shape) for shape in ((2, 2), point.shape, (3,))]
    follow(arena, params, of_point(point), steps=3, dtype=point.dtype)


@law("parity.sparse", points.sparse, groups=("STEPS",))
def sparse(arena: Arena, point: points.SparsePoint) -> None:
    """Sparse gradients, also of a row used twice, are applied as in torch.optim, if the optimizer takes them."""
    gradient = "repeated" if point.twice else "sparse"
    follow(arena, [Param(1, shape, gradient=gradient) for shape in ((6, 3), (4, 2))], of_point(point), steps=3)


@law("none.frozen", lambda: points.plain(2), groups=("STEPS",))
def frozen(arena: Arena, point: Point) -> None:
    """A parameter without requires_grad never changes, in the loss or not, and the others get their own update."""
    params = [Param(1, (3,)), Param(1, (3,), frozen=True), Param(1, (3,))]
    with playing(arena, params, optimizer(variant="everything")) as player:
        player.step(missing=(1,))
        player.step()


@law("none.position", points.none_positions, groups=("STEPS",))
def position(arena: Arena, point: points.PositionPoint) -> None:
    """With a None gradient first, in the middle or last, the others are updated; if all are None, nothing changes."""
    params = [Param(owner, (3, 2)) for owner in (1, 1, 1, 0)]
    with playing(arena, params, of_point(point)) as player:
        for used in point.used:
            player.step(missing=tuple({0, 1, 2, 3}.difference(used)))


@law("none.with-decay", lambda: points.plain(2), groups=("STEPS",))
def with_decay(arena: Arena, point: Point) -> None:
    """A None gradient is not zero: the parameter does not change by decay or momentum."""
    with playing(arena, TWO, optimizer(variant="everything")) as player:
        player.step(missing=(0,))
        player.step(missing=(0,))


@dataclass(frozen=True, kw_only=True)
class ClassPoint(Point):
    """A point with an optimizer, over all parameters."""

    subject_optimizer: Optimizer


def _two_classes(variant: str = "lr") -> Iterator[ClassPoint]:
    """Yield a class with a functional twin in torch and one without: torch's code has a path for each."""
    yield ClassPoint("", 2, core=True, subject_optimizer=optimizer(variant=variant))
    yield ClassPoint("NAdam", 2, core=True, optimizer="NAdam", subject_optimizer=optimizer("NAdam"))


@law("none.later-context", _two_classes)
def later_context(arena: Arena, point: ClassPoint) -> None:
    """A parameter used in context 1 and absent from context 2 does not change in step 2."""
    with playing(arena, [Param(1, (3,))] * 2, point.subject_optimizer, compared=False) as player:
        player.step_that_moves()
        with player.unchanged("the parameter that context 2 does not use", 0):
            player.step(missing=(0,))


@law("context.empty", lambda: _two_classes("momentum"))
def empty(arena: Arena, point: ClassPoint) -> None:
    """A step with a context without any backward changes nothing."""
    with playing(arena, [Param(1, (3, 4)), Param(0, (2,))], point.subject_optimizer, compared=False) as player:
        player.step_that_moves()
        with player.unchanged("{}, after a step with an empty context"):
            player.step(missing=(0, 1))


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
    with playing(arena, TWO, optimizer()) as player:
        player.step(context="older")


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
    params = [Param(1, (3,)), Param(0, (2,))]
    with playing(arena, params, optimizer(variant="momentum"), compared=False) as player:
        player.step_that_moves()
        with player.unchanged("{}, after the refused step"):
            player.refuse(point.context)


@law("state.kept", lambda: points.plain(2), groups=("STEPS",))
def kept(arena: Arena, point: Point) -> None:
    """Optimizer state is kept across steps and contexts: momentum grows as in one long run."""
    follow(arena, TWO, optimizer(variant="momentum"), steps=5)


@dataclass(frozen=True, kw_only=True)
class OwnedPoint(ClassPoint):
    """A point that fixes whether a parameter that the optimizer was not given has a gradient before the step."""

    held: bool = False


def _owned() -> Iterator[OwnedPoint]:
    for point in _two_classes():
        yield OwnedPoint(**vars(point))
    yield OwnedPoint("held-gradient", 2, core=True, subject_optimizer=optimizer(), held=True)


@law("owned.only", _owned)
def owned_only(arena: Arena, point: OwnedPoint) -> None:
    """Parameters that the optimizer was not given are not written to, their .grad included."""
    subject_optimizer = replace(point.subject_optimizer, params=(0,))
    with playing(arena, [Param(1, (3,))] * 2, subject_optimizer, compared=False) as player:
        player.step_that_moves(missing=(1,))
        if point.held:
            player.leave(1)
        with player.unchanged("a parameter that the optimizer was not given", 1):
            player.step()
        done = player.sides.on_owner(1, gradient_was)
        check(not done, f"the .grad of a parameter that the optimizer was not given was {done}")
