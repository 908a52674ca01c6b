"""The moves of ``rpc-optimizer`` between steps: what owners do to their parameters, and users to options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from everyrank.suites.compare.comparison import check
from everyrank.suites.moves.move import first_of, move, only_if
from everyrank.suites.moves.options import can_be_set, further, set_option
from everyrank.suites.rpc_optimizer.moves_of_steps import StepMoves, not_held, numbers, second
from everyrank.suites.rpc_optimizer.outline import Outline
from everyrank.suites.rpc_optimizer.owners import leave_gradient

#: The learning rate that a hook sets.
_HOOKED_RATE = 0.03


def _further(outline: Outline) -> str | None:
    return next(iter([] if outline.model.sparse else further(outline.model.optimizers[0].row.optimizer)), None)


def _changing_needs(outline: Outline, by: int, option: str) -> Sequence[str]:
    known = outline.client((by,)) is not None
    return only_if(known and option in (*outline.options(by), *further(outline.model.optimizers[by].row.optimizer)))


def _hooking_needs(outline: Outline, by: int) -> Sequence[str]:
    # torch calls the hooks of a subclass whose step calls its base's twice, or once.
    known = outline.client((by,)) is not None and outline.model.optimizers[by].own != "signed"
    return ["use of pre-hook", "use of param-groups", *only_if(known)]


def _set_rate(optimizer: Any, args: Any, kwargs: Any) -> None:
    for group in optimizer.param_groups:
        if torch.is_tensor(group["lr"]):
            group["lr"].fill_(_HOOKED_RATE)
        else:
            group["lr"] = _HOOKED_RATE


def _turned(outline: Outline, param: int) -> None:
    outline.frozen ^= {param}


class ChangeMoves(StepMoves):
    """What changes between steps, on both sides."""

    @move(
        "surface",
        needs=_changing_needs,
        needs_of={
            "to": lambda outline, by, option, to: only_if(
                can_be_set(outline.model.optimizers[by].row.optimizer, option, to)
            ),
        },
        drawn={"option": lambda outline: outline.options(0), "factor": (0.5, 2.0), "by": numbers},
        beside=({"by": second}, {"factor": 2.0}),
        kinds=({}, {"option": lambda outline: outline.options(0)[1] if outline.options(0)[1:] else None}),
        further={
            1: (
                {"option": _further},
                {"option": _further, "to": "zero"},
                {"option": lambda outline: outline.options(0)[1] if outline.options(0)[1:] else None, "to": "zero"},
                {"to": "default"},
            )
        },
        shown_by="step",
        writes=("option",),
        reads=("option",),
    )
    def change(self, option: str = "lr", factor: float = 0.5, by: int = 0, to: str = "") -> None:
        """Multiply an option by hand, if the subject has ``param_groups``.

        ``to``: set it to ``zero``, or to the ``default`` of the optimizer's class.
        """

        def set_in(optimizer: Any) -> None:
            set_option(optimizer.param_groups, option, factor, self.model.optimizers[by].row.optimizer, to)

        if not self.refused(by, set_in):
            set_in(self.sides.references[by])

    @move(
        "surface",
        needs=_hooking_needs,
        drawn={"by": numbers},
        kinds=(),
        further={2: ({}, {"by": second})},
        shown_by="step",
        writes=("hook",),
    )
    def set_in_hook(self, by: int = 0) -> None:
        """Register a hook that sets the learning rate before each step, if the subject has hooks and options."""

        def register(optimizer: Any) -> None:
            check(bool(optimizer.param_groups), "param_groups is empty")
            optimizer.register_step_pre_hook(_set_rate)

        if not self.refused(by, register):
            register(self.sides.references[by])

    @move(
        "none.frozen",
        # What a step is to do with a gradient of what was frozen since is not defined.
        needs=lambda outline, param: ["frozen parameters", *outline.without_gradients((param,)), *not_held(outline)],
        needs_of={
            "param": lambda outline, param: only_if(
                param in outline.trained and outline.model.tensor(param) == param
            ),
        },
        then=_turned,
        drawn={"param": lambda outline: outline.trained},
        kinds=({"param": lambda outline: first_of(outline.trained)},),
        shown_by="step",
        writes=("frozen",),
    )
    def freeze(self, param: int) -> None:
        """Freeze a parameter, on its owner."""
        self._require_gradient(param, False)

    @move(
        "none.frozen",
        needs=not_held,
        needs_of={"param": lambda outline, param: only_if(param in outline.frozen)},
        then=_turned,
        drawn={"param": lambda outline: sorted(outline.frozen)},
        kinds=({"param": lambda outline: first_of(sorted(outline.frozen))},),
        shown_by="step",
        writes=("frozen",),
    )
    def thaw(self, param: int) -> None:
        """Thaw a parameter, on its owner."""
        self._require_gradient(param, True)

    def _require_gradient(self, param: int, required: bool) -> None:
        for tensor in self.sides.both(param):
            tensor.requires_grad_(required)

    @move(
        "parity.trajectory",
        drawn={"anew": (False, True)},
        further={1: ({"anew": True},)},
        shown_by="step",
        writes=("parameter",),
    )
    def overwrite(self, anew: bool = False) -> None:
        """Let each owner give its parameters other values, as a checkpoint that is loaded does.

        ``anew``: in new memory, by ``.data``.
        """
        sides = self.sides
        for number in range(len(sides.twins)):
            if self.model.tensor(number) == number:
                for tensor in sides.both(number):
                    if anew:
                        tensor.data = tensor.data * -0.5
                    else:
                        tensor.detach().mul_(-0.5)

    @move(
        "owned.only",
        needs_of={"param": lambda outline, param: only_if(param in outline.trained)},
        drawn={"param": lambda outline: outline.trained},
        kinds=(
            {"param": lambda outline: first_of(outline.trained)},
            {"param": lambda outline: first_of(outline.others)},
        ),
        shown_by="step",
        writes=("gradient",),
    )
    def leave(self, param: int) -> None:
        """Let the owner of a parameter set its ``.grad`` by hand: no step uses it, or clears another's."""
        self.sides.on_owner(param, leave_gradient)
