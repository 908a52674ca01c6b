"""The laws of ``trainer`` about what is equal on all ranks, and in which order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from everyrank.suites.compare.comparison import EXACT, Comparison
from everyrank.suites.errors import NotApplicable
from everyrank.suites.trainer import points
from everyrank.suites.trainer.arena import TRUSTS_INIT, TRUSTS_ORDER, Arena
from everyrank.suites.trainer.contract import CONTRACT
from everyrank.suites.trainer.law_player import follow, playing
from everyrank.suites.trainer.parameters import digests
from everyrank.suites.trainer.points import TrainingPoint

law = CONTRACT.law


def _equals() -> Iterator[TrainingPoint]:
    yield from points.plain(2, 3, 4, steps=3)
    yield from points.plain(
        3, label="fp32", steps=3, dtype=torch.float32, optimizer="Adam", variant="defaults", core=()
    )
    yield from points.plain(2, 3, label="unused-on-first-rank", model="optional", skips=frozenset({0}), core=())


@law("equal", _equals)
def equal(arena: Arena, point: TrainingPoint) -> None:
    """After each step every rank holds the same full parameters, bit for bit."""
    with playing(arena, point.plan, compared="nothing") as player:
        for number in range(1, point.plan.steps + 1):
            player.step()
            ours = digests(player.sides.training.values)
            for rank, theirs in enumerate(arena.meet("compare the parameters", " ".join(ours.values()))):
                different = [name for name, digest in zip(ours, theirs.split(), strict=True) if digest != ours[name]]
                arena.check(not different, f"step {number}: rank {rank} and rank {arena.rank} differ in {different}")


@dataclass(frozen=True, kw_only=True)
class InitPoint(TrainingPoint):
    """A point at which ranks start with models that differ: in their parameters, or in their buffers."""

    differ: str
    trained: bool


def _inits() -> Iterator[InitPoint]:
    for model in ("plain", "frozen", "scalars", "non-contiguous"):
        built = partial(InitPoint, differ="parameters", trained=False)
        yield from points.each_size(
            built, 2, 3, label=f"built-{model}", model=model, core=(2,) if model == "frozen" else ()
        )
    trained = partial(InitPoint, differ="parameters", trained=True)
    yield from points.each_size(trained, 2, 3, label="trained", core=(3,))
    buffers = partial(InitPoint, differ="buffers", trained=True)
    yield from points.each_size(buffers, 2, 3, label="buffers", model="buffers", core=(2,))


@law("init.sync", _inits, groups=("TRAINED", "SCALED"))
def init_sync(arena: Arena, point: InitPoint) -> None:
    """Ranks whose models differ start with rank 0's values, unless the subject declares ``trusts-init``."""
    if TRUSTS_INIT in arena.subject.declares:
        raise NotApplicable("the subject trusts that all ranks start with equal values")
    own: dict[str, Any] = {"own_values": True} if point.differ == "parameters" else {"own_buffer": True}
    if point.trained:
        follow(arena, point.plan, **own)
        return
    with playing(arena, point.plan, **own) as player:
        comparison = Comparison(EXACT, arena.subject.bound)
        comparison.step(0, player.sides.training.values, player.sides.alone.values)
        comparison.raise_first("as it is built: ")
        comparison.verdict()


def _orders() -> Iterator[TrainingPoint]:
    for model in ("equal-shapes", "plain"):
        core = (3,) if model == "equal-shapes" else ()
        yield from points.plain(2, 3, label=model, model=model, steps=3, core=core)


@law("in-order", _orders, groups=("TRAINED", "SCALED"))
def in_order(arena: Arena, point: TrainingPoint) -> None:
    """If the last rank has registered the parameters in another order, each still gets its own gradient.

    DDP documents that this is its user's duty: a subject for which that is so declares ``trusts-order``.
    """
    if TRUSTS_ORDER in arena.subject.declares:
        raise NotApplicable("the subject trusts that all ranks have registered their parameters in one order")
    follow(arena, point.plan, reordered=(arena.size - 1,))
