"""The laws of ``replicate`` about ranks that have no more batches, and ranks that fail."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from everyrank.suites.engine.contract import Point
from everyrank.suites.moves.player import play_or_raise
from everyrank.suites.moves.script import Script, call
from everyrank.suites.replicate.arena import Arena
from everyrank.suites.replicate.contract import CONTRACT
from everyrank.suites.replicate.model import BUFFERS, Buffer, Model, Param

law = CONTRACT.law


def _model(size: int, buffers: tuple[Buffer, ...] = ()) -> Model:
    """Return a model whose values are not compared as it is built: that is for other laws."""
    return Model(size, (Param("inner.p0", (3, 2)), Param("p1", ())), buffers, equal_at_once=False)


@dataclass(frozen=True, kw_only=True)
class UnevenPoint(Point):
    """A point at which ranks have different numbers of batches."""

    batches: tuple[int, ...]
    idle: bool = False
    """Whether a rank that is done stays and does nothing."""


def _uneven() -> Iterator[UnevenPoint]:
    for label, batches in {
        "last-fewer": (3, 3, 1), "first-fewer": (1, 3, 3), "all-different": (2, 3, 1), "two": (3, 2), "none": (2, 0),
    }.items():  # fmt: skip
        yield UnevenPoint(label, len(batches), core=label in ("last-fewer", "first-fewer"), batches=batches)
    # Only one rank goes on. No other is slow: all that it waits for are idle.
    for label, batches in {"last-idle": (2, 1), "others-idle": (1, 2, 1)}.items():
        yield UnevenPoint(label, len(batches), core=label == "last-idle", batches=batches, idle=True)


@law("uneven", _uneven, groups=("TRAINED",))
def uneven(arena: Arena, point: UnevenPoint) -> None:
    """A rank without a batch counts as zero and all end equal, or the others raise. None hangs.

    A rank that is done enters ``join()`` if the module has it, otherwise it leaves. If it stays and does nothing at
    all, the others get an error after the time limit of their group. If the subject declares `names-ranks`, their
    error names a rank that is done.
    """
    training = call("train_unevenly", batches=point.batches, idle=point.idle)
    buffers = BUFFERS["counts"] if point.label == "all-different" else ()
    play_or_raise(arena.subject, Script(_model(point.size, buffers), (training,)))


#: The phase of a step in which a training script fails; ``between``: between two steps.
Phase = Literal["forward", "backward", "between"]


@dataclass(frozen=True, kw_only=True)
class FailurePoint(Point):
    """A point that fixes which rank fails, and when."""

    phase: Phase
    culprit: int


def _failures() -> Iterator[FailurePoint]:
    phase: Phase
    for phase in get_args(Phase):
        for size in (2, 3, 4):
            for culprit in {0, size - 1}:
                label = f"{phase}-{'first' if culprit == 0 else 'last'}"
                core = size == 3 and (phase, culprit) in (("forward", 0), ("between", 2))
                yield FailurePoint(label, size, core=core, phase=phase, culprit=culprit)


@law("errors.rank", _failures)
def errors_rank(arena: Arena, point: FailurePoint) -> None:
    """When one rank fails and leaves, it gets its own error, and all others soon get an error.

    If the subject declares `names-ranks`, their error names the rank.
    """
    failing = call("fail", rank=point.culprit, during=point.phase)
    play_or_raise(arena.subject, Script(_model(point.size), (failing,)))
