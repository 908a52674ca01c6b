"""The moves of ``rpc-optimizer`` that use what an optimizer has besides its step, which a subject may refuse."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed.autograd as dist_autograd
from everyrank.suites.arena import surface
from everyrank.suites.moves.move import move, only_if
from everyrank.suites.rpc_optimizer.moves_of_builds import BuildMoves
from everyrank.suites.rpc_optimizer.moves_of_steps import numbers, second, trained_by
from everyrank.suites.rpc_optimizer.optimizers import moved
from everyrank.suites.rpc_optimizer.outline import Outline
from everyrank.suites.rpc_optimizer.parts import MORE, evaluated_once

_CLOSURES = tuple(name for name in MORE if name.startswith("closure"))


def _saved(outline: Outline, by: int = 0) -> None:
    outline.saved.add(by)


class PartMoves(BuildMoves):
    """What is done besides steps, on both sides."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.saved: dict[int, tuple[Any, Any]] = {}
        """The states of optimizers that were saved last, the subject's at its client, and the reference's."""

    @move(
        "surface",
        needs=lambda outline, part, by: [f"use of {part}", *trained_by(outline, by)],
        drawn={"part": tuple(surface.PARTS), "by": numbers},
        kinds=({"part": "scheduler"}, {"part": "deepcopy"}),
        beside=({"by": second},),
        often=2,
        writes=("option", "scheduler", "hook", "parameter", "optimizer state", "step count"),
        reads=(
            "scheduler",
            "hook",
            "gradient",
            "context",
            "frozen",
            "option",
            "parameter",
            "optimizer state",
            "step count",
        ),
    )
    def use(self, part: str, by: int = 0) -> None:
        """Use a part of an optimizer besides its step, and step; a subject may refuse it with any error."""
        sides, made = self.sides, self.model.optimizers[by]
        data = sides.data(sides.used(), self.number)
        pair = surface.Pair(
            sides.ours.get(by),
            sides.references[by],
            lambda other: sides.step_in_own_context(other, data),
            # Without defaults that are tensors: a tensor that was sent over RPC is another object.
            {name: value for name, value in moved(made).items() if not torch.is_tensor(value)},
        )
        uses, gradients = surface.PARTS[part](pair), sides.gradients(data)

        def act() -> str:
            before = _used_once(uses, sides.references[by])
            sides.step_reference(by, gradients)
            with sides.subject_acts():
                sides.step_in_own_context(sides.ours[by], data)
            return json.dumps([before, _used_once(uses, sides.references[by])])

        texts = self.exchanged(by, act)
        if texts and not self.is_client(by):
            before, after = json.loads(texts)
            _set_rates(sides.references[by], before)
            sides.step_reference(by, gradients)
            _set_rates(sides.references[by], after)

    @move(
        "surface",
        needs=lambda outline, given, by: [f"use of {given}", *trained_by(outline, by)],
        drawn={"given": _CLOSURES, "by": numbers},
        kinds=({},),
        beside=({"by": second},),
        writes=("parameter", "optimizer state", "step count"),
        reads=("gradient", "context", "frozen", "option", "parameter", "optimizer state", "step count"),
    )
    def step_with_closure(self, given: str = "closure", by: int = 0) -> None:
        """Do a step with a closure, whose backward makes the gradients; a subject may refuse it with any error."""
        sides = self.sides
        data = sides.data(sides.used(), self.number)
        gradients = sides.gradients(data)

        def act(ours: Any) -> None:
            with dist_autograd.context() as context_id:
                evaluated_once(ours, given, context_id, lambda: sides.backward(context_id, data))

        if not self.refused(by, act):
            sides.step_reference(by, gradients)

    @move(
        "surface",
        needs=lambda outline, by: ["use of state-dict", *only_if(outline.client((by,)) is not None)],
        then=_saved,
        drawn={"by": numbers},
        beside=({"by": second},),
        writes=("saved state",),
        reads=("optimizer state", "step count", "option"),
    )
    def save(self, by: int = 0) -> None:
        """Copy an optimizer's state dict, if it has one."""
        found: list[Any] = []
        if self.refused(by, lambda ours: found.append(copy.deepcopy(ours.state_dict()))):
            self.saved.pop(by, None)
        else:
            self.saved[by] = found[0] if found else None, copy.deepcopy(self.sides.references[by].state_dict())

    @move(
        "surface",
        needs=lambda outline, by: only_if(by in outline.saved),
        needs_of={"fresh": "dropped optimizers"},
        drawn={"by": numbers, "fresh": (False, True)},
        beside=({"by": second},),
        further={1: ({"fresh": True},)},
        often=2,
        after="save",
        shown_by="step",
        writes=("optimizer state", "step count", "option"),
        reads=("saved state",),
    )
    def load(self, by: int = 0, fresh: bool = False) -> None:
        """Load the last copy of an optimizer's state dict; ``fresh``: into one that is built anew."""
        if by in self.saved:
            if fresh:
                self.build_anew(by, other_rate=True)
            ours, reference = copy.deepcopy(self.saved[by])
            if not self.refused(by, lambda optimizer: optimizer.load_state_dict(ours)):
                self.sides.references[by].load_state_dict(reference)


#: The learning rates of an optimizer's groups, each with whether it is a tensor.
_Rates = list[tuple[float, bool]]


def _used_once(uses: Iterator[None], reference: torch.optim.Optimizer) -> _Rates:
    """Use a part once, on the client, and return the learning rates that the reference has then."""
    surface.use_once(uses)
    return [(float(group["lr"]), torch.is_tensor(group["lr"])) for group in reference.param_groups]


def _set_rates(reference: torch.optim.Optimizer, rates: _Rates) -> None:
    for group, (rate, tensor) in zip(reference.param_groups, rates, strict=True):
        if tensor:
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
