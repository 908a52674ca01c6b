"""The moves of ``replicate`` that train: forwards and backwards, steps, and what becomes of gradients."""

from __future__ import annotations

import contextlib
import functools
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

from everyrank import current_world
from everyrank.fixtures.failing import InjectedError
from everyrank.suites.arena.groups import error_of, root, text_of
from everyrank.suites.engine.contract import Point
from everyrank.suites.engine.subject import Subject
from everyrank.suites.moves.move import NEVER, by_model, move, often_nothing, only_if, subsets
from everyrank.suites.moves.player import Player
from everyrank.suites.replicate.arena import Arena, unsynced
from everyrank.suites.replicate.model import Model
from everyrank.suites.replicate.outline import Outline
from everyrank.suites.replicate.raising import backward_that_raises, raised, raising_needs
from everyrank.suites.replicate.sides import Sides
from torch import nn


def _backward_needs(outline: Outline, synced: bool = True, forwards: int = 1, **given: Any) -> Iterator[str]:
    skips, by = given.get("skips", ()), given.get("skipped_by", ())
    if not synced:
        yield "backwards without sync"
        if outline.static and not outline.trained:
            yield "static graphs that begin without sync"
    if forwards > 1:
        yield "backwards after all forwards"
        if not synced:
            yield NEVER
    if skips or by:
        yield "unused parameters"
        if outline.cleared:
            yield "unused parameters whose gradients were cleared"
        if not (skips and by and outline.model.asked and max(skips) < outline.count):
            yield NEVER
    if given.get("skips_in") and not (skips and forwards > 1):
        yield NEVER
    if given.get("evaluates"):
        yield "buffers in evaluation"
    if given.get("packing"):
        yield "packed inputs"
    again = given.get("times", 1) > 1 and not synced
    if (outline.quiet or again) and any(buffer.moving for buffer in outline.model.buffers):
        yield "buffers in evaluation"


def _ran(outline: Outline, synced: bool = True, **given: Any) -> None:
    outline.pending = outline.unsynced = not synced
    outline.quiet = not synced or given.get("evaluates", False)
    outline.cleared &= not synced
    outline.trained = True


def _stepping_needs(outline: Outline) -> Iterator[str]:
    if outline.pending:
        yield NEVER  # each rank would go its own way


def _cleared(outline: Outline, set_to_none: bool = True) -> None:
    outline.cleared |= outline.unsynced and set_to_none
    outline.pending = False


def _putting_needs(outline: Outline) -> Sequence[str]:
    # A view of a bucket is the bucket's.
    return only_if(outline.model.built != "bucket-view")


def _hooking_needs(outline: Outline, param: int) -> Sequence[str]:
    return ["hooks", *only_if(param in outline.hookable or param in outline.hooked)]


def _hooked(outline: Outline, param: int) -> None:
    outline.hooked ^= {param}


def lowest(numbers: Any) -> int | None:
    return min(numbers, default=None)


def _last_rank(outline: Outline) -> tuple[int, ...]:
    return (outline.model.size - 1,)


def _all_ranks(outline: Outline) -> tuple[int, ...]:
    return tuple(range(outline.model.size))


def _first_param(outline: Outline) -> tuple[int, ...] | None:
    return (0,) if outline.count else None


def _one_rank(outline: Outline) -> tuple[int, ...]:
    """Return the last rank, or the first: another one for another model."""
    return (zlib.crc32(repr(outline.model).encode()) % 2 * (outline.model.size - 1),)


def _one_param(outline: Outline) -> tuple[int, ...] | None:
    """Return a parameter: another one for another model, and one with sparse gradients if there is one."""
    params = outline.model.params
    able = [number for number, param in enumerate(params) if param.layout == "embedding"] or range(len(params))
    return (able[zlib.crc32(repr(params).encode()) % len(able)],) if able else None


class TrainingMoves(Player):
    """What is done to train, on both sides."""

    def __init__(self, subject: Subject, model: Model, arena: Arena | None = None) -> None:
        super().__init__(subject, model)
        self.arena = arena or Arena(subject, Point("script", model.size), current_world())
        self.saved: Any = None
        """The last copy of a state, of both sides."""

    @functools.cached_property
    def sides(self) -> Sides:
        """Subject and references; a move with objects of its own needs none of these."""
        return Sides(self.arena, self.model)

    def compare(self) -> str:
        """Compare this rank's parameters, gradients and buffers with those of its reference."""
        self.sides.compare()
        return ""  # what is ignored, or not synced yet, differs between ranks

    @move(
        "mean",
        laws={"packing": "inputs", "skips": "unused", "forwards": "accumulate"},
        needs=_backward_needs,
        then=_ran,
        drawn={
            "synced": (True, True, True, False),
            "times": (1, 1, 1, 2, 8),
            "forwards": (1, 1, 1, 2),
            "skips": lambda outline: often_nothing(subsets(range(outline.count))[1:]),
            "skipped_by": lambda outline: subsets(range(outline.model.size)),
            "rowless": lambda outline: [()] * 12 + [(rank,) for rank in range(outline.model.size)],
            "packing": ("", "", "", "keyword", "nested"),
        },
        kinds=(
            {},
            {"synced": False},
            {"forwards": 2, "evaluates": by_model((False, True))},
            {"skips": _one_param, "skipped_by": _one_rank},
            {"skips": _one_param, "skipped_by": _all_ranks},
            {"rowless": _last_rank},
            {"packing": "nested"},
            {"synced": False, "packing": "keyword"},
        ),
        further={
            4: (
                {"forwards": 2, "skips": _first_param, "skipped_by": _all_ranks, "skips_in": (1,)},
                {"forwards": 2, "skips": _first_param, "skipped_by": _last_rank, "skips_in": (0,)},
            )
        },
        beside=(
            {"times": 2},
            {"packing": "nested"},
            {"rowless": _one_rank},
            {"evaluates": True},
            {"skips": _one_param, "skipped_by": _one_rank},
            {"packing": "keyword", "times": 2},
        ),
        often=5,
        writes=("gradient", "buffer", "sync"),
        reads=("parameter", "gradient", "gradient put by", "buffer", "frozen", "hook", "sync"),
    )
    def backward(
        self,
        synced: bool = True,
        times: int = 1,
        forwards: int = 1,
        skips: tuple[int, ...] = (),
        skipped_by: tuple[int, ...] = (),
        rowless: tuple[int, ...] = (),
        packing: str = "",
        skips_in: tuple[int, ...] = (),
        evaluates: bool = False,
    ) -> None:
        """Run forwards, and as many backwards, each on its own rows; do so several times.

        ``skips``: these parameters go unused on the ranks ``skipped_by``, in the forwards ``skips_in`` or in all.
        ``rowless``: these ranks have no rows. ``evaluates``: before the backwards there is a forward in eval.
        """
        sides = self.sides
        skipped = [skips if rank in skipped_by else () for rank in range(sides.size)]
        used = [skipped if each in (skips_in or (each,)) else [()] * sides.size for each in range(forwards)]
        for time in range(times):
            mine = [
                sides.train_twins(self.number, time + 8 * each, used[each], rowless, synced)
                for each in range(forwards)
            ]
            with sides.acting(), contextlib.ExitStack() as stack:
                for replica in [] if synced else sides.replicas:
                    stack.enter_context(unsynced(replica))
                losses = [
                    sides.loss(rows, targets, not_used[sides.rank], packing)
                    for (rows, targets), not_used in zip(mine, used, strict=True)
                ]
                if evaluates:
                    sides.evaluate(self.number)
                for each in losses:
                    each.backward()
        sides.equal = True

    @move(
        "parity.train",
        needs=_stepping_needs,
        often=2,
        writes=("parameter", "optimizer state"),
        reads=("parameter", "gradient", "optimizer state"),
    )
    def step(self) -> None:
        """Do one step of the optimizer."""
        self.sides.step()

    @move(
        "accumulate",
        then=_cleared,
        drawn={"set_to_none": (True, True, False)},
        kinds=({}, {"set_to_none": False}),
        writes=("gradient",),
    )
    def clear(self, set_to_none: bool = True) -> None:
        """Clear all gradients."""
        for _, model in self.sides.models:
            model.zero_grad(set_to_none=set_to_none)

    @move(
        "accumulate",
        needs=_putting_needs,
        then=_cleared,
        kinds=(),
        further={2: ({},)},
        shown_by="backward",
        writes=("gradient", "gradient put by"),
        reads=("gradient", "sync"),
    )
    def put_by(self) -> None:
        """Keep all gradients as they are, as for a mean over steps, and clear those of the parameters."""
        self.sides.put_by()

    @move(
        "accumulate",
        needs=_hooking_needs,
        then=_hooked,
        drawn={"param": lambda outline: [*outline.hookable, *sorted(outline.hooked)]},
        kinds=(),
        further={
            2: (
                {"param": lambda outline: lowest(outline.hookable)},
                {"param": lambda outline: lowest(outline.hooked)},
            )
        },
        shown_by="backward",
        writes=("hook",),
        reads=("frozen",),
    )
    def hook(self, param: int) -> None:
        """Register a hook that halves the gradients of a parameter, or remove it."""
        handles = self.sides.hooks.pop(param, None)
        if handles is not None:
            for handle in handles:
                handle.remove()
            return
        self.sides.hooks[param] = [
            self.sides.param(model, param).register_hook(lambda gradient: gradient / 2)
            for _, model in self.sides.models
        ]

    @move(
        "accumulate",
        needs=raising_needs,
        then=raised,
        kinds=(),
        further={2: ({},), 4: ({"synced": False},)},
        shown_by="backward",
        writes=("gradient", "buffer", "sync"),
        reads=("frozen", "hook"),
    )
    def raise_in_backward(self, synced: bool = True) -> None:
        """Run a backward that raises on all ranks, and clear all gradients: nothing else of it stays."""
        sides = self.sides
        rows, targets = sides.forward_twins(self.number)
        layer = self._part(sides.inside, "inner").get_submodule("first")
        error = error_of(lambda: backward_that_raises(sides, layer, rows, targets, synced))
        self.check(isinstance(root(error), InjectedError), f"a backward that raised ended with {text_of(error)}")
        for _, model in sides.models:
            model.zero_grad()
        sides.equal = True

    def _part(self, model: nn.Module, path: str) -> nn.Module:
        for name in filter(None, path.split(".")):
            model = self.arena.inside(model.get_submodule(name))
        return model
