"""The moves of ``sharded-optimizer`` between steps: groups, their options, and what is frozen and thawed."""

from __future__ import annotations

from typing import Any

import torch
from everyrank.model.counts import count
from everyrank.suites.compare.comparison import check
from everyrank.suites.errors import NotApplicable
from everyrank.suites.moves.move import first_of, move, only_if
from everyrank.suites.sharded_optimizer.moves_of_training import TrainingMoves
from everyrank.suites.sharded_optimizer.outline import Outline


def _added(outline: Outline, count: int = 1, **given: Any) -> None:
    outline.handed += count
    outline.groups += 1
    outline.saved = False


def _turned(outline: Outline, param: int) -> None:
    outline.frozen ^= {param}


def _changed(value: Any, factor: float) -> Any:
    """Return an option multiplied, a flag turned over, or decay rates halved; 0 becomes an eighth."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (tuple, list)):
        return tuple(part / 2 for part in value)
    return value * factor or 0.125


class GroupMoves(TrainingMoves):
    """What changes between steps, on both sides."""

    @move(
        "state.groups",
        needs=lambda outline, count: ["groups", *only_if(0 < count <= outline.count - outline.handed)],
        needs_of={"weight_decay": lambda outline: only_if("weight_decay" in outline.options)},
        then=_added,
        drawn={
            "count": lambda outline: range(1, outline.count - outline.handed + 1),
            "lr": (0.3, 0.02),
            "weight_decay": (None, 0.2),
        },
        kinds=({}, {"lr": 0.02, "weight_decay": 0.2}),
        often=4,
        shown_by="train",
        writes=("group",),
        reads=("group",),
    )
    def add_group(self, count: int = 1, lr: float = 0.3, weight_decay: float | None = None) -> None:
        """Add the next parameters, which the optimizer did not have, as a group with its own options."""
        self.sides.add_group(count, {"lr": lr} | ({} if weight_decay is None else {"weight_decay": weight_decay}))

    @move(
        "surface",
        needs=lambda outline, option, group: only_if(option in outline.options and group in range(outline.groups)),
        drawn={
            "option": lambda outline: outline.options,
            "factor": (0.5, 2.0),
            "group": lambda outline: range(outline.groups),
        },
        kinds=(
            {},
            {"factor": 2.0, "group": lambda outline: outline.groups - 1 or None},
            {"option": lambda outline: outline.options[1] if outline.options[1:] else None},
        ),
        shown_by="train",
        writes=("option",),
        reads=("option", "group"),
    )
    def change(self, option: str = "lr", factor: float = 0.5, group: int = 0) -> None:
        """Multiply an option of a group by hand, if the subject has ``param_groups``."""
        for each in self.both_groups(group):
            if torch.is_tensor(each[option]):
                each[option].mul_(factor)
            else:
                each[option] = _changed(each[option], factor)

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
