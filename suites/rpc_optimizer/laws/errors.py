"""The laws of ``rpc-optimizer`` about errors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from everyrank.fixtures.optimizers import Invalid, Row, rows
from everyrank.suites.engine.contract import Point
from everyrank.suites.rpc_optimizer import points
from everyrank.suites.rpc_optimizer.arena import Arena
from everyrank.suites.rpc_optimizer.contract import CONTRACT
from everyrank.suites.rpc_optimizer.law_player import optimizer, playing
from everyrank.suites.rpc_optimizer.model import Param

law = CONTRACT.law

FAILING = optimizer(variant="momentum", own="planted")


#: Owners in the order of their parameters. For each label, the owner that fails, and another that is slow.
PARAMS = [Param(owner, (number + 2,)) for number, owner in enumerate((1, 2, 0))]
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


@law("errors.constructor", _one_fails)
def constructor(arena: Arena, point: OneFailsPoint) -> None:
    """An error in a remote constructor reaches the caller with type, message and worker; nothing half-built stays."""
    with playing(arena, PARAMS, compared=False) as player, player.unchanged("{}, after the refused construction"):
        player.fail_build(point.failing)


@law("errors.step", _one_fails, groups=("STEPS", "EVERY_OWNER"))
def in_step(arena: Arena, point: OneFailsPoint) -> None:
    """A remote step's error reaches the caller with type and worker when all owners are done; the next one works."""
    with playing(arena, PARAMS, FAILING) as player:
        player.step()
        player.fail(point.failing, slow=point.slow)
        player.step()


@law("errors.several", _two_fail, groups=("STEPS", "EVERY_OWNER"))
def several(arena: Arena, point: TwoFailPoint) -> None:
    """When several workers fail, the error, of any type, names each with its own cause; later steps work."""
    first, other = point.failing
    with playing(arena, PARAMS, FAILING) as player:
        player.step()
        player.fail(first, also=(other,))
        player.step()


@law("errors.unpicklable", lambda: points.plain(2))
def unpicklable(arena: Arena, point: Point) -> None:
    """The text of an exception that cannot be pickled still reaches the caller."""
    with playing(arena, [Param(1, (3,))], FAILING, compared=False) as player:
        player.fail(1, foreign=True)


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
        with playing(arena, [Param(1, (3,))], compared=False) as player:
            player.invalid(name=point.given)
        return
    with playing(arena, points.params_for(point.row, [1]), compared=False) as player:
        player.invalid(point.row.name, point.invalid.name)


@law("wait", _one_fails, groups=("EVERY_OWNER",))
def wait(arena: Arena, point: OneFailsPoint) -> None:
    """step returns when the slowest owner is done, not earlier."""
    with playing(arena, PARAMS, FAILING) as player:
        player.wait(point.slow)
