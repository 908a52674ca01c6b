"""The laws of ``trainer`` about models, microbatches, clipping and numbers that are not finite."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from everyrank.fixtures.models import Model, Plain
from everyrank.suites.errors import NotApplicable
from everyrank.suites.trainer import points
from everyrank.suites.trainer.arena import SAME_COUNT, SAME_GRAPH, Arena
from everyrank.suites.trainer.contract import CONTRACT
from everyrank.suites.trainer.generators import noisy
from everyrank.suites.trainer.law_player import follow, playing
from everyrank.suites.trainer.points import TrainingPoint

law = CONTRACT.law

#: The models, with the sizes at which rogues are tried on them.
_MODELS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("frozen", "buffers", "scalars", "empty", "few-rows", "views", "gaps", "equal-shapes"), ()),
    **dict.fromkeys(("tied", "unused", "non-contiguous", "mixed-dtypes", "complex"), (2,)),
}


class Counting(Plain):
    """Finds forwards on copies of the buffers, and buffers that are sent anew: each forward changes what it adds."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__(dtype)
        self.register_buffer("shift", torch.zeros((), dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = super().forward(x) + self.get_buffer("shift")
        self.get_buffer("shift").add_(0.125)
        return out


COUNTING = Model("counting", Counting, frozenset({"buffers"}))


class Drawing(Plain):
    """Finds forwards that are done twice, or in another order: each draws numbers, as dropout does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(noisy(x))


DRAWING = Model("draws", Drawing, frozenset({"draws"}))

#: The ranks that do not use the branch; negative numbers count from the end.
_SKIPS = {"first-rank": {0}, "last-rank": {-1}, "all-but-one": {0, 2, 3}}


def _models() -> Iterator[TrainingPoint]:
    for model, core in _MODELS.items():
        # A weight decay moves what has a zero gradient, and not what has none.
        yield from points.plain(2, 3, label=model, model=model, steps=3, core=core, variant="everything")
    for label, ranks in _SKIPS.items():
        for size in (2, 3, 4):
            skips = frozenset(rank % size for rank in ranks)
            core = (3,) if label == "last-rank" else ()
            yield from points.plain(
                size, label=f"unused-on-{label}", model="optional", skips=skips, steps=3, core=core
            )
    everywhere = frozenset(range(4))
    yield from points.plain(
        2, 3, label="unused-later", model="optional", skips=everywhere, skips_from=2, steps=3, core=(2,)
    )
    yield from points.plain(2, 3, label="counting", model=COUNTING, steps=3, core=())
    yield from points.plain(2, 3, label="thawed", model="frozen", steps=3, thaw=2, core=())
    yield from points.plain(2, label="draws", model=DRAWING, steps=3, core=())


@law("parity.models", _models, groups=("TRAINED", "SCALED"))
def models(arena: Arena, point: TrainingPoint) -> None:
    """Every kind of parameter trains as in one process: tied, frozen, unused, without dimensions or elements, ...

    A parameter that no rank uses keeps its value and its state; if some ranks use it, the others count as zero. What
    a forward writes into a buffer is there for the next one. A forward may draw from torch's generator: a step draws
    what its microbatches do in their order, and nothing else.
    """
    if point.plan.model not in (COUNTING, DRAWING):
        follow(arena, point.plan)
        return
    with playing(arena, point.plan, draws=point.plan.model is DRAWING) as player:
        player.step(times=point.plan.steps, parts=point.plan.parts)


def _rows() -> Iterator[TrainingPoint]:
    for label, rows in {"falling": (5, 4, 2, 1), "one": (1, 5, 5, 5)}.items():
        yield from points.plain(2, 3, 4, label=label, core=(3,) if label == "falling" else (), rows=rows)


@law("mean", _rows, groups=("TRAINED", "SCALED"))
def mean(arena: Arena, point: TrainingPoint) -> None:
    """The mean over ranks is unweighted: a rank with fewer rows counts as much as any other."""
    follow(arena, point.plan)


@dataclass(frozen=True, kw_only=True)
class AccumulationPoint(TrainingPoint):
    """A point that may name a microbatch which uses less than the others, on all ranks."""

    skips_in: tuple[int, ...] = ()
    parts_on: tuple[int, ...] = ()
    """How many microbatches each rank has, if not all have as many."""


def _accumulations() -> Iterator[AccumulationPoint]:
    for parts in (2, 3, 5):
        core = (3,) if parts == 3 else ()
        yield from points.each_size(
            AccumulationPoint, 1, 2, 3, label=f"parts{parts}", core=core, parts=parts, steps=3
        )
    for label, given in (
        ("unused-on-first-rank", {"model": "optional", "skips": frozenset({0})}),
        ("sparse", {"model": "sparse-sum", "variant": "lr"}),
    ):
        yield from points.each_size(AccumulationPoint, 2, label=label, parts=2, core=(), **given)
    for size, parts_on in {2: (1, 3), 3: (2, 1, 3)}.items():
        make = partial(AccumulationPoint, parts_on=parts_on)
        yield from points.each_size(make, size, label="uneven", parts=3, core=())
    for number, label in enumerate(("first-unused", "last-unused")):
        make = partial(AccumulationPoint, skips_in=(number,))
        yield from points.each_size(make, 2, label=label, model="optional", parts=2, core=())


@law("accumulate", _accumulations, groups=("TRAINED", "SCALED"))
def accumulate(arena: Arena, point: AccumulationPoint) -> None:
    """A step on k microbatches follows the sum of their losses, also if not all of them use the same parameters.

    Not all ranks need have as many: the mean over ranks is that of their sums.
    """
    if not point.skips_in and not point.parts_on:
        follow(arena, point.plan)
        return
    if SAME_GRAPH in arena.subject.declares:
        raise NotApplicable("the subject needs the same parameters in each microbatch, and as many on each rank")
    if point.parts_on and SAME_COUNT in arena.subject.declares:
        raise NotApplicable("the subject needs as many microbatches on each rank")
    with playing(arena, point.plan) as player:
        if point.parts_on:
            player.step(times=2, parts_on=point.parts_on)
            return
        player.step(times=point.plan.steps, parts=point.plan.parts, skips=(0,), skips_in=point.skips_in)


def _clips() -> Iterator[TrainingPoint]:
    yield from points.plain(1, 2, 3, 4, label="cut", core=(3,), clip=0.05, steps=3)
    yield from points.plain(2, label="within", core=(), clip=1e6, steps=2)
    for model in ("tied", "frozen", "unused", "mixed-dtypes"):
        yield from points.plain(2, label=model, model=model, core=(), clip=0.05)
    yield from points.plain(2, 3, label="accumulated", core=(), clip=0.05, parts=2)


@law("clip", _clips, groups=("TRAINED", "SCALED"))
def clip(arena: Arena, point: TrainingPoint) -> None:
    """``max_norm`` limits the norm of the whole mean gradient, once."""
    follow(arena, point.plan)


@dataclass(frozen=True, kw_only=True)
class InfinitePoint(TrainingPoint):
    """A point with a batch of one rank that is not finite."""

    value: float
    max_norm: float | None = None


def _infinite() -> Iterator[InfinitePoint]:
    for label, value in (("inf", float("inf")), ("nan", float("nan"))):
        core = (3,) if label == "inf" else ()
        yield from points.each_size(partial(InfinitePoint, value=value), 1, 2, 3, label=label, core=core)
    clipped = partial(InfinitePoint, value=float("inf"), max_norm=0.05)
    yield from points.each_size(clipped, 2, 3, label="inf-clipped", core=())


@law("non-finite", _infinite, groups=("TRAINED", "SCALED"))
def non_finite(arena: Arena, point: InfinitePoint) -> None:
    """A batch of one rank that is not finite has the same effect on all ranks: the effect that it has alone."""
    with playing(arena, point.plan) as player:
        player.step(times=2, max_norm=point.max_norm)
        player.step(spoiled=str(point.value), by=player.sides.training.parts - 1, max_norm=point.max_norm)
