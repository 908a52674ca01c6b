"""The moves of ``sharded-optimizer`` that save and load, use the subject's other parts, or let a rank fail."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from everyrank.fixtures.failing import KEEPING, MESSAGE
from everyrank.suites.arena import surface
from everyrank.suites.arena.subject_errors import subject_acts
from everyrank.suites.moves.move import by_model, move, only_if
from everyrank.suites.sharded_optimizer.faults import FAULTS, check_errors, error_text
from everyrank.suites.sharded_optimizer.moves_of_groups import GroupMoves
from everyrank.suites.sharded_optimizer.outline import Outline
from everyrank.suites.sharded_optimizer.sides import Sides

#: Fresh objects start with another learning rate than the state that they load.
_OTHER_RATE = 0.5

_PARTS = ("pre-hook", "post-hook", "defaults", "repr", "deepcopy")


def _saved(outline: Outline) -> None:
    outline.saved = True


def _loaded(outline: Outline, fresh: bool = False, **given: Any) -> None:
    outline.differ &= not fresh
    outline.clamped &= not fresh


def _used(outline: Outline, **given: Any) -> None:
    outline.differ = False


def _failing_needs(outline: Outline, during: str) -> Iterator[str]:
    if during == "step":
        yield "errors in a class of the user's own"
    if during == "closure":
        yield "errors in closures"
        # If a subject raises on one rank only, the others would wait for its gradient.
        yield from only_if(outline.apart and not outline.tables)


class StateMoves(GroupMoves):
    """What is done besides training, on both sides."""

    @move(
        "state.round-trip",
        needs=lambda outline: ["saves and loads", *only_if(not outline.casts)],
        then=_saved,
        often=2,
        writes=("saved state",),
        reads=("optimizer state", "step count", "option", "group", "frozen", "failed step"),
    )
    def save(self) -> None:
        """Copy the state dict, which replaces the last copy."""
        with subject_acts():
            state = copy.deepcopy(self.sides.ours.state_dict())
        self.saved = state, _snapshot(self.sides.reference)

    @move(
        "state.round-trip",
        needs=lambda outline: only_if(outline.saved),
        # The state of an optimizer that flattens its parameters, as LBFGS does, depends on their order.
        needs_of={"reordered": lambda outline, fresh: only_if(fresh and not outline.closures_only)},
        then=_loaded,
        drawn={"fresh": (True, False), "reordered": (False, False, True)},
        kinds=({}, {"fresh": True}, {"fresh": True, "reordered": True}),
        often=3,
        after="save",
        shown_by="train",
        writes=("gradient", "optimizer state", "step count", "option"),
        reads=("saved state", "group", "frozen", "failed step"),
    )
    def load(self, fresh: bool = False, reordered: bool = False) -> None:
        """Load the last copy into the same optimizer, or into fresh objects.

        ``reordered``: the fresh subject gets the names of each group in reverse order.
        """
        sides = self.sides
        assert self.saved is not None
        state, kept = self.saved
        if fresh:
            sides.renew()
            rate = sides.given.get("lr")
            other = torch.full_like(rate, _OTHER_RATE) if torch.is_tensor(rate) else _OTHER_RATE
            sides.build({**sides.given, "lr": other}, reordered)
            sides.reference.defaults["lr"] = _OTHER_RATE  # for a group without a rate of its own
        with subject_acts():
            sides.ours.load_state_dict(copy.deepcopy(state))
        _restore(sides.reference, kept)

    @move(
        "names",
        needs=lambda outline: only_if(outline.model.module),
        needs_of={"prefix": "prefixes", "recurse": "names without recursion"},
        drawn={"prefix": ("", "model"), "recurse": (True, False)},
        kinds=({}, {"prefix": "model"}, {"recurse": False}),
        beside=({"prefix": "model"}, {"recurse": False}),
        often=2,
        apart=True,
    )
    def names(self, prefix: str = "", recurse: bool = True) -> None:
        """Ask for the named parameters of the module."""
        self.home.named_parameters("names", prefix, recurse)

    @property
    def pair(self) -> surface.Pair:
        """Both optimizers, for the use of a part."""
        sides = self.sides
        built = {name: value for name, value in sides.arguments.items() if not torch.is_tensor(value)}
        return surface.Pair(sides.ours, sides.reference, lambda other: other.step(), built)

    @move(
        "surface",
        needs=lambda outline: ["parts besides the step", *only_if(not outline.closures_only)],
        then=_used,
        drawn={"part": _PARTS},
        kinds=tuple({"part": part} for part in ("pre-hook", "deepcopy")),
        writes=("gradient", "hook", "parameter", "optimizer state", "step count"),
        reads=("hook", "parameter", "optimizer state", "step count", "option", "group", "frozen", "failed step"),
    )
    def use(self, part: str) -> None:
        """Use a part of the optimizer besides its step, and step; a subject may refuse it with any error."""
        sides = self.sides
        sides.give(self.number)
        uses = surface.PARTS[part](self.pair)
        surface.use_once(uses)
        self._step()
        surface.use_once(uses)

    @move(
        "errors.rank",
        needs="errors",
        needs_of={"during": _failing_needs},
        drawn={
            "rank": lambda outline: range(outline.model.size),
            "during": ("construction", "step", "closure"),
            "text": KEEPING,
        },
        kinds=tuple(
            {"rank": lambda outline: outline.model.size - 1, "during": during, "text": by_model(KEEPING)}
            for during in ("construction", "step", "closure")
        ),
        apart=True,
    )
    def fail(self, rank: int, during: str = "construction", text: str = "") -> None:
        """Let one rank fail with objects of its own: the error is raised on all, with the rank and the cause.

        ``text``: what stands around the text of the cause.
        """
        fault = FAULTS[during]
        texts = self.exchange(lambda: error_text(Sides(self.arena.another(), self.model), fault, rank, text))
        check_errors(texts, rank, fault.cause, text if fault.cause == MESSAGE else "")

    @move(
        "errors.rank",
        # What a hook has made of the gradients of a step that fails is not defined.
        needs=lambda outline: [
            "errors",
            "closures",
            *_failing_needs(outline, "closure"),
            *only_if(not outline.clamped),
        ],
        then=_used,
        drawn={"rank": lambda outline: range(outline.model.size), "text": KEEPING},
        kinds=(),
        further={1: ({"rank": lambda outline: outline.model.size - 1, "text": by_model(KEEPING)}, {"rank": 0})},
        shown_by="train",
        writes=("gradient", "failed step"),
    )
    def fail_step(self, rank: int, text: str = "") -> None:
        """Let a closure fail on one rank: the error is raised on all, and then all can go on: nothing has moved.

        ``text``: what stands around the text of the cause.
        """
        fault = FAULTS["closure"]
        check_errors(self.exchange(lambda: error_text(self.sides, fault, rank, text)), rank, fault.cause, text)


def _snapshot(optimizer: Any) -> Any:
    """Return a copy of state and options, as they are: load_state_dict of torch.optim would cast the state."""
    options = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    state = [
        [dict(optimizer.state[tensor]) if tensor in optimizer.state else None for tensor in group["params"]]
        for group in optimizer.param_groups
    ]
    return copy.deepcopy((options, state))


def _restore(optimizer: Any, kept: Any) -> None:
    for group, options, states in zip(optimizer.param_groups, *copy.deepcopy(kept), strict=True):
        group.update(options)
        for tensor, state in zip(group["params"], states, strict=True):
            optimizer.state.pop(tensor, None)
            if state is not None:
                optimizer.state[tensor] = state
