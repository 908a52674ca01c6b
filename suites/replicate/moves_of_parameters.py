"""The moves of ``replicate`` that are about single parameters: they are given gradients, frozen, thawed, replaced."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from everyrank.suites.moves.move import NEVER, move, subsets
from everyrank.suites.replicate.moves_of_training import TrainingMoves, lowest
from everyrank.suites.replicate.outline import Outline
from torch import nn


def _giving_needs(outline: Outline, to: tuple[int, ...] = (), own: bool = False) -> Iterator[str]:
    if not to or not set(outline.givable).issuperset(to):
        yield NEVER


def _given(outline: Outline, to: tuple[int, ...], own: bool = False) -> None:
    outline.pending |= own


def _freezing_needs(outline: Outline, param: int = -1) -> Iterator[str]:
    yield "thawed parameters"
    if outline.static or param not in range(outline.count) or param in outline.frozen:
        yield NEVER


def _thawing_needs(outline: Outline, param: int = -1) -> Iterator[str]:
    yield "thawed parameters"
    if outline.static or param not in outline.frozen:
        yield NEVER


def _frozen(outline: Outline, param: int) -> None:
    outline.frozen ^= {param}


def _replacing_needs(outline: Outline, param: int = -1) -> Iterator[str]:
    yield "replaced parameters"
    if param not in outline.replaceable or outline.pending:
        yield NEVER


def _replaced(outline: Outline, param: int) -> None:
    outline.saved = False
    outline.hooked.discard(param)


def _first_givable(outline: Outline) -> tuple[int, ...] | None:
    return tuple(outline.givable[:1]) or None


class ParameterMoves(TrainingMoves):
    """What is done to single parameters, on both sides."""

    @move(
        "mean",
        needs=_giving_needs,
        then=_given,
        drawn={"to": lambda outline: subsets(outline.givable)[1:], "own": (False, True)},
        kinds=({"to": _first_givable}, {"to": _first_givable, "own": True}),
        shown_by="backward",
        writes=("gradient",),
    )
    def give(self, to: tuple[int, ...], own: bool = False) -> None:
        """Set the gradients of these parameters by hand; if ``own``, to a different value on each rank.

        If no loss uses such a parameter in the next backward, its gradient may stay, or be averaged.
        """
        for rank, model in self.sides.models:
            for number in to:
                parameter = self.sides.param(model, number)
                parameter.grad = torch.full_like(parameter, 1 + number + (rank if own else 0))

    @move(
        "frozen",
        needs=_freezing_needs,
        then=_frozen,
        drawn={"param": lambda outline: range(outline.count)},
        kinds=({"param": lambda outline: lowest({*range(outline.count)} - outline.frozen)},),
        shown_by="backward",
        writes=("frozen", "gradient"),
    )
    def freeze(self, param: int) -> None:
        """Clear a parameter's gradient and freeze it."""
        self._freeze(param, True)

    @move(
        "frozen",
        needs=_thawing_needs,
        then=_frozen,
        drawn={"param": lambda outline: sorted(outline.frozen)},
        kinds=({"param": lambda outline: max(outline.frozen, default=None)},),  # not that which was frozen just now
        shown_by="backward",
        writes=("frozen", "gradient"),
    )
    def thaw(self, param: int) -> None:
        """Thaw a parameter."""
        self._freeze(param, False)

    def _freeze(self, number: int, frozen: bool) -> None:
        self.sides.frozen ^= {number}
        for _, model in self.sides.models:
            parameter = self.sides.param(model, number)
            parameter.grad = None
            parameter.requires_grad_(not frozen)

    @move(
        "rewrap",
        needs=_replacing_needs,
        then=_replaced,
        drawn={"param": lambda outline: outline.replaceable},
        kinds=({"param": lambda outline: lowest(outline.replaceable)},),
        shown_by="backward",
        writes=("parameter", "gradient", "optimizer state"),
        reads=("parameter", "frozen"),
    )
    def replace(self, param: int) -> None:
        """Replace a parameter by a new one with the same values, and make a new optimizer."""
        self.sides.replaced = True
        self.saved = None
        self.sides.hooks.pop(param, None)
        for _, model in self.sides.models:
            path, _, last = self.model.params[param].name.rpartition(".")
            part = self._part(model, path)
            old = part.get_parameter(last)
            part.register_parameter(last, nn.Parameter(old.detach().clone(), old.requires_grad))
        self.sides.optimize()
