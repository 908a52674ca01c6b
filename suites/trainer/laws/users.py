"""The laws of ``trainer`` about what its user does with the model and the optimizer, past the trainer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from everyrank.suites.trainer import points
from everyrank.suites.trainer.arena import Arena
from everyrank.suites.trainer.contract import CONTRACT
from everyrank.suites.trainer.law_player import playing
from everyrank.suites.trainer.points import TrainingPoint

law = CONTRACT.law


@dataclass(frozen=True, kw_only=True)
class WritingPoint(TrainingPoint):
    """A point that fixes what is written, and whether it gets new memory."""

    buffers: bool
    anew: bool


def _writings() -> Iterator[WritingPoint]:
    for buffers, anew, label in (
        (False, False, "in-place"),
        (False, True, "new"),
        (True, False, "buffers-in-place"),
        (True, True, "buffers-new"),
    ):
        make = partial(WritingPoint, buffers=buffers, anew=anew)
        model = "buffers" if buffers else "plain"
        core = (3,) if label == "new" else ()
        yield from points.each_size(make, 2, 3, label=label, model=model, steps=3, variant="momentum", core=core)


@law("written", _writings, groups=("TRAINED", "SCALED"))
def written(arena: Arena, point: WritingPoint) -> None:
    """What a user writes into the parameters or buffers of the model counts, in place or as ``p.data = x``.

    It counts at once, and in the next step: nothing goes on with an earlier value.
    """
    with playing(arena, point.plan) as player:
        player.step()
        (player.overwrite_buffers if point.buffers else player.overwrite)(anew=point.anew)
        player.step(times=2)


@dataclass(frozen=True, kw_only=True)
class HookPoint(TrainingPoint):
    """A point that fixes what a hook is of: each gradient, or the rate."""

    on: str


def _hooks() -> Iterator[HookPoint]:
    for on in ("gradient", "rate"):
        yield from points.each_size(partial(HookPoint, on=on), 2, 3, label=on, steps=3, variant="momentum")


@law("hooks", _hooks, groups=("TRAINED", "SCALED"))
def hooks(arena: Arena, point: HookPoint) -> None:
    """Hooks act: those of a parameter change each gradient, those of the optimizer the rate of the next step.

    They are those of torch, ``parameter.register_hook()`` and ``optimizer.register_step_pre_hook()``.
    """
    with playing(arena, point.plan) as player:
        player.step()
        player.hook(point.on)
        player.step(times=2)
