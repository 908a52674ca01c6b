"""The laws of ``rpc-optimizer`` about arguments of the optimizer, and about classes that are not torch's own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from everyrank.fixtures.optimizers import Row
from everyrank.suites.compare.comparison import EXACT, Comparison
from everyrank.suites.engine.contract import Point
from everyrank.suites.errors import Deviation, Vacuous
from everyrank.suites.moves.options import zeros_of
from everyrank.suites.rpc_optimizer import points
from everyrank.suites.rpc_optimizer.arena import Arena
from everyrank.suites.rpc_optimizer.contract import CONTRACT
from everyrank.suites.rpc_optimizer.law_player import Values, follow, optimizer, playing
from everyrank.suites.rpc_optimizer.laws.training import params_for
from everyrank.suites.rpc_optimizer.model import Optimizer, Param
from everyrank.suites.rpc_optimizer.optimizers import arguments as passed_to

law = CONTRACT.law


@dataclass(frozen=True, kw_only=True)
class ArgumentPoint(Point):
    """A point with an optimizer of the table, and all of its arguments by position, or its defaults by name."""

    row: Row
    given: str
    passed: str
    """The arguments, so that each list of them is in the default profile."""


def _passing(row: Row, given: str) -> Optimizer:
    return optimizer(row.name, row.fullest.name if given == "positional" else "defaults", given=given)


def _argument_lists() -> Iterator[ArgumentPoint]:
    for row in (default.row for default in points.defaults()):
        for name, given in (("positional", "positional"), ("explicit-defaults", "explicit")):
            _, args, kwargs = passed_to(_passing(row, given))
            label, core, passed = f"{row.name}-{name}", row.name in ("SGD", "Adam"), str(args or kwargs)
            yield ArgumentPoint(label, 2, core=core, optimizer=row.name, row=row, given=given, passed=passed)
    for row in (default.row for default in points.defaults()):
        if zeros := zeros_of(row.optimizer):
            label, core = f"{row.name}-zeros", row.name == "AdamW"
            yield ArgumentPoint(label, 2, core=core, optimizer=row.name, row=row, given="zeros", passed=str(zeros))


@law("parity.arguments", _argument_lists, groups=("STEPS",))
def arguments(arena: Arena, point: ArgumentPoint) -> None:
    """Arguments by position, explicit defaults, and zeros have the same effect as in torch.optim."""
    follow(arena, params_for(arena, point.row), _passing(point.row, point.given), steps=3)


@dataclass(frozen=True, kw_only=True)
class SubclassPoint(Point):
    """A point with an optimizer of a subclass."""

    subject_optimizer: Optimizer


@dataclass(frozen=True, kw_only=True)
class UnchangedPoint(SubclassPoint):
    """A point with a subclass that acts as its base does, and the parameters that have no gradient in each step."""

    missing: Sequence[tuple[int, ...]]


def _subclasses() -> Iterator[SubclassPoint | UnchangedPoint]:
    yield SubclassPoint("", 2, core=True, subject_optimizer=optimizer(variant="momentum", own="subclass"))
    yield SubclassPoint("signed", 2, core=True, subject_optimizer=optimizer(variant="momentum", own="signed"))
    for label, name, variant, missing in (
        ("defaults", "SGD", "defaults", [()]),
        ("none-gradient", "Adagrad", "lr", [(0,), (0,)]),
        ("later-context", "SGD", "lr", [(), (0,)]),
        # A decay moves what has a zero gradient, and not what has none.
        ("none-gradient-decay", "SGD", "weight-decay", [(0,), (0,)]),
    ):
        traits = optimizer(name, variant, own="subclass")
        yield UnchangedPoint(label, 2, core=True, subject_optimizer=traits, missing=missing)


@law("parity.subclass", _subclasses, groups=("STEPS",))
def subclass(arena: Arena, point: SubclassPoint | UnchangedPoint) -> None:
    """A subclass that changes nothing acts as its base does under the same subject; its own step() is not lost."""
    if not isinstance(point, UnchangedPoint):
        follow(arena, [Param(1, (3, 4))], point.subject_optimizer, steps=3)
        return
    start, *found = _values(arena, point.subject_optimizer, point.missing)
    _, *expected = _values(arena, replace(point.subject_optimizer, own=""), point.missing)
    comparison = Comparison(EXACT, arena.subject.bound)
    comparison.start(start)
    for step, (ours, base) in enumerate(zip(found, expected, strict=True), 1):
        comparison.step(step, ours, base)
    try:
        comparison.verdict()
    except Vacuous:
        # The base under the same subject stands for the reference: that it did not move is the subject's deviation.
        raise Deviation("the subclass and its base moved no parameter, whose gradients are not zero") from None


def _values(arena: Arena, traits: Optimizer, missing: Sequence[tuple[int, ...]]) -> list[Values]:
    """Return the values at the start and after each step of the subject."""
    with playing(arena, [Param(1, (3, 2))] * 3, traits, compared=False) as player:
        found = [player.sides.values]
        for numbers in missing:
            player.step(missing=numbers)
            found.append(player.sides.values)
    return found
