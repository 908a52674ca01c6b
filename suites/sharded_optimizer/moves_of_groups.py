"""The moves of ``sharded-optimizer`` between steps: groups, their options, and what is frozen and thawed."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from everyrank.fixtures.optimizers import row
from everyrank.model.counts import count
from everyrank.suites.arena.groups import error_of
from everyrank.suites.arena.subject_errors import in_a_line
from everyrank.suites.compare.comparison import check
from everyrank.suites.errors import NotApplicable
from everyrank.suites.moves.move import first_of, move, only_if
from everyrank.suites.moves.options import can_be_set, set_option
from everyrank.suites.sharded_optimizer.moves_of_gradients import GradientMoves
from everyrank.suites.sharded_optimizer.outline import Outline


def _added(outline: Outline, count: int = 1, **given: Any) -> None:
    outline.handed += count
    outline.groups += 1
    outline.saved = False


def _turned(outline: Outline, param: int) -> None:
    outline.frozen ^= {param}


def _changing_needs(outline: Outline, option: str, group: int) -> Sequence[str]:
    return only_if(option in (*outline.options, *outline.further) and group in range(outline.groups))


def _adding_needs(outline: Outline, count: int, bare: bool, weight_decay: float | None) -> Iterator[str]:
    yield "groups"
    yield from only_if(0 < count <= outline.count - outline.handed and not (bare and weight_decay))


def _set_needs(outline: Outline, option: str, to: str) -> Sequence[str]:
    return only_if(can_be_set(row(outline.model.optimizer).optimizer, option, to))


def _hooked(outline: Outline, after: bool = False) -> None:
    outline.clamped |= not after


class GroupMoves(GradientMoves):
    """What changes between steps, on both sides."""

    @move(
        "state.groups",
        needs=_adding_needs,
        needs_of={
            "weight_decay": lambda outline: only_if("weight_decay" in outline.options),
            # Whether the group has its own copy of a rate that is a tensor is not defined.
            "bare": lambda outline: only_if("tensor" not in outline.model.variant),
            "tied": "tied parameters",
            "refused": "groups that a rank refuses",
        },
        then=_added,
        drawn={
            "count": lambda outline: range(1, outline.count - outline.handed + 1),
            "lr": (0.3, 0.02),
            "weight_decay": (None, 0.2),
            "tied": (False, False, True),
            "refused": (False, False, True),
        },
        kinds=({}, {"lr": 0.02, "weight_decay": 0.2}),
        further={1: ({"bare": True},), 2: ({"lr": 0.0}, {"weight_decay": 0.0}), 3: ({"count": 2}, {"count": 3})},
        beside=({"weight_decay": 0.2}, {"tied": True}, {"refused": True}, {"tied": True, "refused": True}),
        often=4,
        shown_by="train",
        writes=("group", "option"),
        reads=("group", "optimizer state", "failed step"),
    )
    def add_group(
        self,
        count: int = 1,
        lr: float = 0.3,
        weight_decay: float | None = None,
        bare: bool = False,
        tied: bool = False,
        refused: bool = False,
    ) -> None:
        """Add the next parameters, which the optimizer did not have, as a group with its own options.

        ``bare``: it has none of its own, and so those with which the optimizer was built. ``tied``: it also has the
        model's first parameter, under another name, or is refused so on all ranks. ``refused``: before that, the last
        rank has a tensor for it that is no leaf; all ranks refuse it, and nothing of it stays.
        """
        decay = {} if weight_decay is None else {"weight_decay": weight_decay}
        options = {} if bare else {"lr": lr, **decay}
        if refused:
            self._refuse_group(count, options)
        if tied:
            texts = self.exchange(lambda: self._offer(count, options, self.sides.tie))
            found = "; ".join(f"rank {rank}: {text or 'no error'}" for rank, text in enumerate(texts))
            check(not any(texts) or all(texts), f"some ranks alone refuse a group with a tied parameter: {found}")
            tied = not any(texts)
        self.sides.add_group(count, options, tied)

    def _refuse_group(self, count: int, options: dict[str, Any]) -> None:
        """Offer a group that one rank refuses: the error is raised on all, with its number."""
        victim, sides = self.model.size - 1, self.sides
        leaf = torch.ones(2, 2, dtype=sides.dtype, device=sides.arena.world.device, requires_grad=True)
        more = {"more": leaf * 1 if sides.arena.rank == victim else leaf}
        for rank, text in enumerate(self.exchange(lambda: self._offer(count, options, more))):
            text = text or "no error"
            check(f"rank {victim}" in text, f"rank {victim} has no leaf in a group, and rank {rank} gets {text}")

    def _offer(self, count: int, options: dict[str, Any], more: dict[str, Any]) -> str:
        """Offer the subject a group of the next parameters and of more. Return its error, or an empty text."""
        start = self.sides.groups[-1][1]
        group = {"params": {**self.sides.named(start, start + count), **more}, **copy.deepcopy(options)}
        error = error_of(lambda: self.sides.ours.add_param_group(group))
        return "" if error is None else in_a_line(error)

    @move(
        "surface",
        needs=_changing_needs,
        needs_of={"to": _set_needs},
        drawn={
            "option": lambda outline: [*outline.options, *outline.further],
            "factor": (0.5, 2.0),
            "group": lambda outline: range(outline.groups),
        },
        kinds=(
            {},
            {"factor": 2.0, "group": lambda outline: outline.groups - 1 or None},
            {"option": lambda outline: outline.options[1] if outline.options[1:] else None},
        ),
        further={
            1: (
                {"option": lambda outline: first_of(outline.further)},
                {"option": lambda outline: first_of(outline.further), "to": "zero"},
                {"option": lambda outline: outline.options[1] if outline.options[1:] else None, "to": "zero"},
                {"to": "default"},
            ),
            2: ({"to": "whole"},),
        },
        beside=(
            {"group": lambda outline: outline.groups - 1 or None},
            {"factor": lambda outline: None if outline.closures_only else 2.0},
        ),
        shown_by="train",
        writes=("option",),
        reads=("option", "group"),
    )
    def change(self, option: str = "lr", factor: float = 0.5, group: int = 0, to: str = "") -> None:
        """Multiply an option of a group by hand, if the subject has ``param_groups``.

        ``to``: set it to ``zero``, to the ``default`` of the optimizer's class, or to a ``whole`` number.
        """
        set_option(self.both_groups(group), option, factor, row(self.model.optimizer).optimizer, to)

    def both_groups(self, number: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return a group of the reference, and that of the subject, if it has ``param_groups``."""
        own, groups = getattr(self.sides.ours, "param_groups", None), len(self.sides.groups)
        if own is None:
            raise NotApplicable("the subject has no param_groups")
        check(len(own) == groups, f"param_groups has {count(len(own), 'group')} instead of {groups}")
        return self.sides.reference.param_groups[number], own[number]

    @move(
        "frozen",
        needs="frozen parameters",
        needs_of={"param": lambda outline, param: only_if(param in outline.trained)},
        then=_turned,
        drawn={"param": lambda outline: outline.trained},
        kinds=({"param": lambda outline: first_of(outline.trained)},),
        shown_by="train",
        writes=("frozen", "gradient"),
    )
    def freeze(self, param: int) -> None:
        """Clear a parameter's gradient and freeze it."""
        self.sides.require_gradient(param, False)

    @move(
        "frozen",
        needs="frozen parameters",
        needs_of={"param": lambda outline, param: only_if(param in outline.frozen)},
        then=_turned,
        drawn={"param": lambda outline: sorted(outline.frozen)},
        kinds=({"param": lambda outline: first_of(sorted(outline.frozen))},),
        shown_by="train",
        writes=("frozen",),
    )
    def thaw(self, param: int) -> None:
        """Thaw a parameter."""
        self.sides.require_gradient(param, True)

    @move(
        "surface",
        # Clamped gradients that differ between ranks have another mean, and sparse ones are not clamped.
        # A subclass whose step calls that of its base calls a hook twice, with other gradients.
        needs=lambda outline: ["parts besides the step", *only_if(outline.hookable)],
        then=_hooked,
        drawn={"after": (False, True)},
        kinds=(),
        further={2: ({}, {"after": True})},
        shown_by="train",
        writes=("acting hook",),
    )
    def hook(self, after: bool = False) -> None:
        """Register a hook that clamps all gradients before each step; a subject may refuse it with any error.

        ``after``: one that clamps all parameters after each step.
        """
        self.sides.hook(after)

    @move(
        "parity.shard",
        needs_of={"param": lambda outline, param: only_if(param in range(outline.count))},
        drawn={"anew": (False, True), "param": lambda outline: [None, None, *range(outline.count)]},
        kinds=(),
        further={
            1: ({}, {"anew": True}),
            4: ({"param": 0}, {"param": lambda outline: outline.count - 1 or None, "anew": True}),
        },
        shown_by="train",
        writes=("parameter",),
    )
    def overwrite(self, anew: bool = False, param: int | None = None) -> None:
        """Give all parameters other values by hand, as a checkpoint that is loaded does, or one by its number.

        ``anew``: in new memory, by ``.data``.
        """
        parameters = self.sides.parameters
        for each in parameters if param is None else [parameters[param]]:
            for tensor in (each.twin, *(tensor for tensor, _ in each.pieces)):
                if anew:
                    tensor.data = tensor.data * -0.5
                else:
                    tensor.detach().mul_(-0.5)
