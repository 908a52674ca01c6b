"""The moves of ``trainer`` that train: steps, options, groups, and parameters that are frozen and thawed."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import torch
from everyrank import current_world
from everyrank.suites.arena.subject_errors import subject_acts
from everyrank.suites.engine.contract import Point
from everyrank.suites.engine.subject import Subject
from everyrank.suites.moves.move import first_of, move, only_if
from everyrank.suites.moves.options import can_be_set, set_option
from everyrank.suites.moves.player import Player
from everyrank.suites.trainer.arena import Arena
from everyrank.suites.trainer.model import Group, Model, Step, set_frozen
from everyrank.suites.trainer.outline import Outline
from everyrank.suites.trainer.parameters import digests
from everyrank.suites.trainer.sides import Sides
from everyrank.suites.trainer.steps import STEPS
from torch.optim.lr_scheduler import ExponentialLR


def _frozen(outline: Outline, param: int, **given: Any) -> None:
    outline.used |= outline.frozen & {param}
    outline.frozen ^= {param}
    outline.thawed = True


def _options(outline: Outline) -> Sequence[str]:
    decays = ["weight_decay"] if outline.decays else []
    return ["lr", *decays, "momentum"] if outline.model.optimizer == "SGD" else ["lr", *decays]


def _changed(outline: Outline, option: str = "lr", group: int = -1, to: str = "", **given: Any) -> None:
    if option == "momentum":
        outline.will_keep = not to  # that of zero keeps nothing
    if option == "lr":
        outline.still = to == "zero" and group == -1
        outline.stood &= outline.still


def _scheduled(outline: Outline, **given: Any) -> None:
    outline.scheduled = True


def _changing_needs(outline: Outline) -> Iterator[str]:
    yield "changed rates"
    if outline.added:
        yield "options of groups that were just added"
    yield from only_if(not outline.closures)


def _scheduling_needs(outline: Outline) -> Iterator[str]:
    yield "schedulers"
    if outline.added:
        yield "options of groups that were just added"
    if outline.loaded:
        yield "changed rates"
    yield from only_if(not outline.closures)


def _adding_needs(outline: Outline, count: int) -> Iterator[str]:
    yield "added groups"
    yield from only_if(0 < count <= outline.count - outline.handed)


def _added(outline: Outline, count: int, **given: Any) -> None:
    outline.handed += count
    outline.saved, outline.fresh, outline.still, outline.stood = False, True, False, False
    outline.added = True


def _multiply(groups: Sequence[dict[str, Any]], option: str, factor: float, in_place: bool) -> None:
    values = [group[option] * factor or 0.125 for group in groups]  # groups may share a tensor
    for group, value in zip(groups, values, strict=True):
        if in_place or torch.is_tensor(group[option]):
            group[option].fill_(value)
        else:
            group[option] = value


#: All that is known of a change of an option, besides what it does.
_CHANGES: dict[str, Any] = {
    "needs": _changing_needs,
    "needs_of": {
        "option": lambda outline, option: only_if(option in _options(outline)),
        "in_place": lambda outline, option: [
            "rates that are tensors",
            *only_if(outline.tensors and option == "lr"),
        ],
        "to": lambda outline, option, to: only_if(can_be_set(outline.model.row.optimizer, option, to)),
    },
    "then": _changed,
    "drawn": {
        "option": lambda outline: ["lr"] * 4 + [*_options(outline)],
        "factor": (0.5, 2.0),
        "group": (-1, -1, 0, 1),
        "to": ("", "", "", "zero", "default"),
    },
    "kinds": (
        {"factor": 0.5},
        {"factor": 2.0, "group": 0},
        {"option": lambda outline: _options(outline)[-1] if _options(outline)[1:] else None},
    ),
    "further": {
        3: (
            {"to": "zero"},
            {"to": "zero", "group": 0},
            {"to": "default"},
            {"to": "zero", "option": lambda outline: _options(outline)[-1] if _options(outline)[1:] else None},
        ),
        13: ({"in_place": True, "group": 0},),
    },
    "beside": ({"group": 1}, {"factor": 2.0}, {"group": 0}),
    "often": 2,
    "shown_by": "step",
    "writes": ("option",),
    "reads": ("option", "group"),
}


class TrainingMoves(Player):
    """What is done to train, on both sides."""

    sides_of: ClassVar[type[Sides]] = Sides

    def __init__(self, subject: Subject, model: Model, arena: Arena | None = None) -> None:
        super().__init__(subject, model)
        world = current_world()
        self.arena = arena or Arena(subject, Point("script", world.size), world)
        self.schedulers: list[Any] = []
        self.used: frozenset[int] = frozenset()
        """The unused parameters that are used by now."""
        self.saved: Any = None
        """The last copy of a state, with the reference at that point."""

    @functools.cached_property
    def sides(self) -> Sides:
        """Both sides of the training that the moves are about."""
        return self.sides_of(self.arena, self.model)

    def compare(self) -> str:
        """Compare the full parameters with the reference's; on all ranks they are equal bit for bit."""
        found = self.sides.training.values  # gathered once: FSDP2's takes as long as a step
        self.sides.compare_values(found)
        if self.model.options:
            self.sides.compare_options()
        if self.model.watched and (self.model.saves_some or self.sides.all_handed):
            self.sides.ask()
        return " ".join(digests(found).values())

    @move("parity.train", **STEPS)
    def step(
        self,
        times: int = 1,
        parts: int = 1,
        max_norm: float | None = None,
        skips: tuple[int, ...] = (),
        skipped_by: tuple[int, ...] = (),
        rows: tuple[int, ...] = (),
        spoiled: str = "",
        by: int = 0,
        waits: bool = False,
        skips_in: tuple[int, ...] = (),
        by_turns: bool = False,
        parts_on: tuple[int, ...] = (),
    ) -> None:
        """Train for one step, or for several, each on microbatches of its own.

        ``skips``: these parameters go unused, on the ranks ``skipped_by`` or on all, in the microbatches
        ``skips_in`` or in all; ``by_turns``: each rank leaves out another one. ``rows``: how many rows a
        microbatch of each rank has. ``parts_on``: how many microbatches each rank has, if not all have
        ``parts``. ``spoiled``: the targets of rank ``by`` are this value, inf, nan or large. ``waits``:
        nothing may change a while after.
        """
        sides = self.sides
        step = Step(parts, max_norm, skips, skipped_by, rows, spoiled, by, skips_in, self.used, by_turns, parts_on)
        for time in range(times):
            sides.step(step, self.number, time)
            for scheduler in self.schedulers:
                with subject_acts("a scheduler"):
                    scheduler.step()
            if time < times - 1:
                sides.compare()
        if waits:
            sides.wait()

    @move(
        "parity.models",
        needs=lambda outline: ["thawed parameters", "frozen parameters", *only_if(not outline.closures)],
        needs_of={
            "param": lambda outline, param: only_if(param in outline.trained),
            "evaluates": "modes of parts",
        },
        then=_frozen,
        drawn={"param": lambda outline: range(outline.count), "evaluates": (False, True)},
        kinds=({"param": lambda outline: first_of(outline.trained)},),
        beside=({"evaluates": True},),
        shown_by="step",
        writes=("frozen", "frozen state"),  # what the optimizer keeps of it
    )
    def freeze(self, param: int, evaluates: bool = False) -> None:
        """Freeze a parameter, by its number.

        ``evaluates``: a part of the model is in ``eval()``, as a frozen BatchNorm is, until a parameter is thawed.
        """
        self._freeze(self.sides.frozen | {param})
        if evaluates:
            self.sides.evaluate(True)

    @move(
        "parity.models",
        needs="thawed parameters",
        needs_of={"param": lambda outline, param: only_if(param in outline.frozen)},
        then=_frozen,
        drawn={"param": lambda outline: sorted(outline.frozen)},
        kinds=({"param": lambda outline: first_of(sorted(outline.frozen))},),
        shown_by="step",
        writes=("frozen",),
        reads_further={12: ("frozen state",)},
    )
    def thaw(self, param: int) -> None:
        """Thaw a parameter, by its number; all parts of the model are in ``train()`` then."""
        self._freeze(self.sides.frozen - {param})
        if self.sides.evaluated:
            self.sides.evaluate(False)

    def _freeze(self, frozen: set[int]) -> None:
        self.sides.frozen = frozen
        self.sides.alone.freeze(frozen)
        set_frozen(self.sides.training.model, self.model, frozen)

    @move("alias", **_CHANGES)
    def change(
        self, option: str = "lr", factor: float = 0.5, group: int = -1, in_place: bool = False, to: str = ""
    ) -> None:
        """Multiply an option of one of the groups, or of all if there is none of this number; 0 becomes an eighth.

        ``in_place``: the option is a tensor; such are filled in any case. ``to``: set it to ``zero`` or to its
        ``default``.
        """

        def change(groups: list[dict[str, Any]]) -> None:
            chosen = groups if group not in range(len(groups)) else [groups[group]]
            if to:
                set_option(chosen, option, factor, self.model.row.optimizer, to)
            else:
                _multiply(chosen, option, factor, in_place)

        with subject_acts("param_groups"):
            change(list(self.sides.training.trainer.param_groups))
        change(self.sides.alone.optimizer.param_groups)

    @move(
        "parity.schedule",
        needs=_scheduling_needs,
        then=_scheduled,
        drawn={"gamma": (0.5, 0.25)},
        kinds=({"gamma": 0.5},),
        shown_by="step",
        writes=("scheduler",),
        reads=("option", "group"),
    )
    def schedule(self, gamma: float) -> None:
        """Attach a scheduler, which multiplies the rates after each step until a state is loaded."""
        with subject_acts("a scheduler"):
            self.schedulers.append(ExponentialLR(self.sides.training.trainer.optimizer, gamma))
        self.schedulers.append(ExponentialLR(self.sides.alone.optimizer, gamma))

    @move(
        "parity.groups",
        needs=_adding_needs,
        needs_of={"weight_decay": lambda outline: only_if(outline.decays)},
        then=_added,
        drawn={
            "count": lambda outline: range(1, outline.count - outline.handed + 1),
            "lr": (None, 0.03125, 0.25),
            "weight_decay": (None, 0.25),
        },
        kinds=({"count": 1, "lr": 0.25}, {"count": 1}),
        further={3: ({"count": 1, "weight_decay": lambda outline: 0.0 if outline.decays else None},)},
        often=3,
        writes=("group",),
        reads=("group",),
        reads_further={7: ("option",)},  # what is not given is the default, whatever the other groups have by now
    )
    def add_group(self, count: int, lr: float | None = None, weight_decay: float | None = None) -> None:
        """Add the next parameters, which no group has yet, as a group."""
        sides = self.sides
        sides.groups.append(Group(count, lr, weight_decay))
        sides.add(sides.alone.named(sides.groups)[-1])
        self.saved = None
