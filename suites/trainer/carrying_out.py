"""Carry out a draw of ``trainer``: each action on the subject, and on one plain model in each process."""

from __future__ import annotations

import contextlib
import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from everyrank import current_world
from everyrank.fixtures.optimizers import row
from everyrank.suites.arena.groups import error_of, own_group
from everyrank.suites.arena.subject_errors import in_a_line, subject_acts
from everyrank.suites.compare.comparison import check
from everyrank.suites.engine.contract import Point
from everyrank.suites.engine.subject import Subject
from everyrank.suites.generate.grammar import Rejected
from everyrank.suites.generate.player import Player
from everyrank.suites.trainer import grammar as g
from everyrank.suites.trainer.arena import Arena
from everyrank.suites.trainer.drawn_alone import DrawnAlone
from everyrank.suites.trainer.drawn_apart import fail, load_wrong_state, reshard
from everyrank.suites.trainer.drawn_model import set_frozen
from everyrank.suites.trainer.drawn_objects import FRESH, TrainerObjects
from everyrank.suites.trainer.laws.ranks import digests
from torch.optim.lr_scheduler import ExponentialLR

#: What a rank says that has no parameters to compare.
_NONE = "none"


def carry_out(subject: Subject, draw: g.Draw) -> Iterator[None]:
    """Make the objects of a draw and carry out its actions; yield after each.

    A trainer whose ranks evaluate a closure unequally often would wait for ever, but for a group that loses patience.
    """
    world = current_world()
    arena = Arena(subject, Point("generated", world.size), world)
    with own_group() if draw.optimizer == "LBFGS" else contextlib.nullcontext():
        yield from _comparing_ranks(arena, draw)


def _comparing_ranks(arena: Arena, draw: g.Draw) -> Iterator[None]:
    """Carry out each action; then compare the ranks with each other, bit for bit, and yield."""
    player: TrainerPlayer | None = None
    for _ in range(len(draw.actions) + 1):
        error: Exception | None = None
        text = _NONE
        try:
            if player is None:
                player = TrainerPlayer(arena, draw)
                actions = player.play()
            next(actions)
            text = " ".join(digests(player.objects.training.values).values())
        except Rejected:
            raise  # on all ranks alike
        except Exception as caught:  # all ranks meet below, whatever has happened on this one
            error = caught
        texts = arena.meet("compare the ranks", text)
        if error is not None:
            raise error
        for rank, theirs in enumerate(texts):
            check(_NONE in (text, theirs) or text == theirs, f"rank {rank} has other parameters")
        yield


@dataclass(frozen=True)
class _Saved:
    """A copy of a state, with the reference at that point."""

    state: Any
    alone: DrawnAlone


class TrainerPlayer(Player[g.Draw, TrainerObjects]):
    """What each action of a draw does, on each rank."""

    def __init__(self, arena: Arena, draw: g.Draw) -> None:
        super().__init__(draw, TrainerObjects(arena, draw))
        self.arena = arena
        self.schedulers: list[Any] = []
        self.saved: _Saved | None = None

    @property
    def file(self) -> str:
        """The file with rank 0's copy of the state."""
        return f"{self.arena.world.folder}/drawn-state"

    # --- training ------------------------------------------------------------------------------------

    def _step(self, action: g.Step) -> None:
        objects = self.objects
        for time in range(action.times):
            objects.step(action, time)
            for scheduler in self.schedulers:
                with subject_acts("a scheduler"):
                    scheduler.step()
            objects.compare()

    def _freeze(self, action: g.Freeze) -> None:
        objects = self.objects
        objects.frozen = objects.frozen - {action.param} | ({action.param} if action.frozen else set())
        objects.alone.freeze(objects.frozen)
        set_frozen(objects.training.model, self.draw, objects.frozen)

    # --- options -------------------------------------------------------------------------------------

    def _addgroup(self, action: g.AddGroup) -> None:
        objects = self.objects
        objects.groups.append(action.group)
        group = objects.alone.named(objects.groups)[-1]
        with subject_acts("add_param_group"):
            objects.training.trainer.add_param_group(copy.deepcopy(group))
        objects.alone.add_param_group(group)
        self.saved = None

    def _setrate(self, action: g.SetRate) -> None:
        with subject_acts("param_groups"):
            ours = list(self.objects.training.trainer.param_groups)
        for groups in (ours, self.objects.alone.optimizer.param_groups):
            chosen = groups if action.group not in range(len(groups)) else [groups[action.group]]
            for group in chosen:
                group["lr"] = group["lr"] * action.factor

    def _schedule(self, action: g.Schedule) -> None:
        with subject_acts("a scheduler"):
            self.schedulers.append(ExponentialLR(self.objects.training.trainer.optimizer, action.gamma))
        self.schedulers.append(ExponentialLR(self.objects.alone.optimizer, action.gamma))

    def _refuse(self, action: g.Refuse) -> None:
        found = row(self.draw.optimizer)
        invalid = found.invalid[action.invalid % len(found.invalid)]
        error = error_of(partial(self.objects.build_with, invalid.make()))
        as_due = isinstance(error, invalid.error) and re.search(invalid.match, str(error)) is not None
        raised = "nothing" if error is None else in_a_line(error)
        check(as_due, f"{invalid.name}: raised {raised} instead of {invalid.error.__name__}: {invalid.match}")

    # --- states --------------------------------------------------------------------------------------

    def _save(self, action: g.Save) -> None:
        objects = self.objects
        state = objects.state()
        if self.arena.rank == 0 and any(isinstance(each, g.Load) and each.of_first for each in self.draw.actions):
            torch.save(state, self.file)
        self.saved = _Saved(state, objects.alone.copy())

    def _load(self, action: g.Load) -> None:
        if self.saved is None:
            return
        objects = self.objects
        state = torch.load(self.file, weights_only=False) if action.of_first else copy.deepcopy(self.saved.state)
        orders = range(self.draw.size) if action.reordered else None
        objects.load(state, objects.begin(FRESH, orders) if action.fresh else objects.training)
        objects.alone = self.saved.alone.copy()
        objects.alone.freeze(objects.frozen)
        self.schedulers.clear()

    def _wrongstate(self, action: g.WrongState) -> None:
        load_wrong_state(self.arena, self.draw, action, self.objects.number)

    # --- in a group of its own -----------------------------------------------------------------------

    def _fail(self, action: g.Fail) -> None:
        fail(self.arena, self.draw, action, self.objects.number)

    def _reshard(self, action: g.Reshard) -> None:
        reshard(self.arena, self.draw, action, self.objects.number)
