"""The laws of ``trainer`` about models, microbatches, clipping and numbers that are not finite."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from everyrank.suites.trainer import points
from everyrank.suites.trainer.arena import Arena
from everyrank.suites.trainer.contract import CONTRACT
from everyrank.suites.trainer.law_player import follow, playing
from everyrank.suites.trainer.points import TrainingPoint

law = CONTRACT.law

#: The models, with the sizes at which rogues are tried on them.
_MODELS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("frozen", "buffers", "scalars", "empty", "few-rows", "views", "gaps", "equal-shapes"), ()),
    **dict.fromkeys(("tied", "unused", "non-contiguous", "mixed-dtypes", "complex"), (2,)),
}

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
    yield from points.plain(2, 3, label="thawed", model="frozen", steps=3, thaw=2, core=())


@law("parity.models", _models, groups=("TRAINED", "SCALED"))
def models(arena: Arena, point: TrainingPoint) -> None:
    """Every kind of parameter trains as in one process: tied, frozen, unused, without dimensions or elements, ...

    A parameter that no rank uses keeps its value and its state; if some ranks use it, the others count as zero.
    """
    follow(arena, point.plan)


def _rows() -> Iterator[TrainingPoint]:
    for label, rows in {"falling": (5, 4, 2, 1), "one": (1, 5, 5, 5)}.items():
        yield from points.plain(2, 3, 4, label=label, core=(3,) if label == "falling" else (), rows=rows)


@law("mean", _rows, groups=("TRAINED", "SCALED"))
def mean(arena: Arena, point: TrainingPoint) -> None:
    """The mean over ranks is unweighted: a rank with fewer rows counts as much as any other."""
    follow(arena, point.plan)


def _accumulations() -> Iterator[TrainingPoint]:
    for parts in (2, 3, 5):
        yield from points.plain(1, 2, 3, label=f"parts{parts}", core=(3,) if parts == 3 else (), parts=parts, steps=3)
    skips = frozenset({0})
    yield from points.plain(2, label="unused-on-first-rank", model="optional", skips=skips, parts=2, core=())
    yield from points.plain(2, label="sparse", model="sparse-sum", variant="lr", parts=2, core=())


@law("accumulate", _accumulations, groups=("TRAINED", "SCALED"))
def accumulate(arena: Arena, point: TrainingPoint) -> None:
    """A step on k microbatches follows the sum of their losses."""
    follow(arena, point.plan)


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
    max_norm: float = 0.0


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
