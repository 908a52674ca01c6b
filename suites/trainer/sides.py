"""Both sides of a script of ``trainer`` on one rank: the subject's trainer, and the reference beside it."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from everyrank.suites.arena.subject_errors import subject_acts
from everyrank.suites.compare.comparison import check, same
from everyrank.suites.compare.reference import SEED
from everyrank.suites.engine.subject import Subject
from everyrank.suites.moves.together import Rejected, reference_acts
from everyrank.suites.trainer.arena import Arena
from everyrank.suites.trainer.as_torch import reloaded
from everyrank.suites.trainer.batches import Microbatch
from everyrank.suites.trainer.comparing import Comparing
from everyrank.suites.trainer.generators import Generators
from everyrank.suites.trainer.model import Model, Step, is_evaluated, set_mode
from everyrank.suites.trainer.model_alone import ModelAlone
from everyrank.suites.trainer.parameters import Values, first_names, full_parameters, own_parameters, reordered
from torch import nn

#: The seed of a model into which a state is loaded: none of its values may stay.
FRESH = 99


@dataclass
class TrainingSide:
    """A trainer of the subject on a model."""

    trainer: Any
    model: nn.Module
    """The model as it was given to ``build``."""
    made_of: Model
    names: Mapping[str, str]
    """For each name of a parameter the first name of that parameter: a tied one has two."""
    index: int
    """Which part of each batch this rank trains on, of ``parts``."""
    parts: int
    device: torch.device
    computes: bool = False
    """Whether this rank has computed a loss in the last step."""
    generators: Generators = field(default_factory=dict)
    """Where its user lets the next step go on to draw."""

    def step(self, step: Step, number: int, time: int) -> Any:
        """Train for one step on this rank's microbatches."""
        options = {} if step.max_norm is None else {"max_norm": step.max_norm}
        batches = self.batches(step, number, time)
        with subject_acts("step"), self.made_of.drawing(self.index, self.generators):
            found = self.trainer.step(*batches, **options)
        self.computes = any(batch.asked for batch in batches)
        return found

    def batches(self, step: Step, number: int, time: int) -> list[Microbatch]:
        found = self.made_of.batches(self.model, step, number, time, self.index)
        return [batch.to(self.device) for batch in found]

    @property
    def values(self) -> Values:
        return full_parameters(self.trainer, self.names)

    @property
    def own(self) -> Values:
        return own_parameters(self.model)


class Sides(Comparing):
    """Both sides of one training. Their parameters may differ by the order of a sum alone."""

    def __init__(self, arena: Arena, made_of: Model, seed: int = SEED) -> None:
        self.arena, self.made_of = arena, made_of
        self.frozen = {number for number, param in enumerate(made_of.params) if param.frozen}
        self.groups = list(made_of.groups)
        """The groups with which a fresh trainer is built, for a state of now."""
        self.evaluated = False
        """Whether a part of the model is in eval()."""
        self.steps = 0
        """How many steps there were."""
        self.exact_so_far = True
        """Whether all parameters of a coarse dtype have had the reference's bits at each comparison.

        Their error reaches the others in the step after, or by the norm in a step that clips.
        """
        with reference_acts():
            self.alone = self.reference()
        self.as_torch: ModelAlone | None = None
        """The reference, if its optimizer saves and loads where the subject does, and that makes a difference."""
        self.training = self.begin(seed)

    def reference(self) -> Any:
        """Return the reference at the start."""
        return ModelAlone(self.made_of, self.frozen)

    def begin(self, seed: int, orders: Iterable[int] | None = None) -> TrainingSide:
        """Let the subject build on a fresh model. It has no reason to raise.

        ``orders``: the ranks that register in the opposite order, if not those of the model.
        """
        model = self._model(seed, self.made_of.reordered if orders is None else orders)
        names = first_names(model)
        groups = self.made_of.named(self.groups, names)
        given: dict[str, Any] = {"groups": groups} if groups else {}
        try:
            trainer = self.arena.subject.build(
                model, self.made_of.row.optimizer, **self.made_of.choice.make(), **given
            )
        except Exception as error:
            self.refused(error)
            with subject_acts("build"):
                raise
        self.arena.check_trainer(trainer)
        index, parts = getattr(trainer, "part", (dist.get_rank(), dist.get_world_size()))
        return TrainingSide(trainer, model, self.made_of, names, index, parts, self.arena.device)

    def refused(self, error: Exception) -> None:
        """Reject the script if the subject says of models like this one that it lacks them."""
        if _declared(self.arena.subject, error):
            raise Rejected(str(error)) from error

    def build_with(self, arguments: Mapping[str, Any]) -> Any:
        """Let the subject build with these arguments of the optimizer."""
        model = self._model(SEED, self.made_of.reordered)
        return self.arena.subject.build(model, self.made_of.row.optimizer, **arguments)

    def _model(self, seed: int, orders: Iterable[int]) -> nn.Module:
        made_of, rank = self.made_of, self.arena.rank
        model = made_of.build(seed + (rank if made_of.own_values else 0), self.frozen)
        if made_of.own_buffer:
            model.get_buffer("shift").add_(rank)
        if rank in orders:
            reordered(model)
        set_mode(model, self.evaluated)
        return model.to(self.arena.device)

    # --- training ------------------------------------------------------------------------------------

    def evaluate(self, evaluated: bool) -> None:
        """Put a part of the model in eval(), or back in train(), on both sides."""
        self.evaluated = evaluated
        with subject_acts("the model"):
            set_mode(self.training.model, evaluated)
        self.set_modes_alone()

    def set_modes_alone(self) -> None:
        for alone in self.references:
            set_mode(alone.model, self.evaluated)

    def step(self, step: Step, number: int, time: int) -> None:
        """Train both sides for one step, and compare the loss, if one is returned."""
        self.steps += 1
        if self.made_of.draws:  # a user saves them beside the state, and goes on from before a step that has failed
            self.training.generators = dict(self.alone.generators)
        with reference_acts():
            wanted = self.alone.step(step, number, time, self.training.parts)
            self.exact_so_far &= step.max_norm is None or not self.coarse_gradients
            if self.as_torch is not None:
                self.as_torch.follow(self.alone)
                self.as_torch.step(step, number, time, self.training.parts)
        found = self.training.step(step, number, time)
        kept = not self.evaluated or is_evaluated(self.training.model)
        check(kept, "layer0 is in train(), and its user has put it in eval(); if a step does so, declare sets-modes")
        if self.made_of.draws:
            self.compare_generators()
        if found is not None and self.made_of.losses:
            self.compare_loss(torch.as_tensor(found), wanted)

    def wait(self) -> None:
        """Check that nothing changes for a while."""
        own, full = self.training.own, self.training.values
        self.meet()
        self.arena.wait_a_while()
        for name, value in self.training.own.items():
            same(value, own[name], f"{name} of rank {self.arena.rank}, some time after step {self.steps}")
        for name, value in self.training.values.items():
            same(value, full[name], f"{name}, some time after step {self.steps}")

    def meet(self) -> None:
        """Wait until all ranks are here. The ranks of a script meet after each move."""

    def add(self, group: dict[str, Any]) -> None:
        """Add a group, by the names of its parameters."""
        with subject_acts("add_param_group"):
            self.training.trainer.add_param_group(copy.deepcopy(group))
        self.alone.add_param_group(group)

    @property
    def all_handed(self) -> bool:
        """Whether each parameter is in a group."""
        return not self.groups or sum(group.count for group in self.groups) == len(self.made_of.params)

    def ask(self) -> None:
        """Ask for the state, and make nothing of it."""
        before = torch.get_rng_state()
        with subject_acts("state_dict"):
            self.training.trainer.state_dict()
        check(torch.equal(before, torch.get_rng_state()), "state_dict drew random numbers: later ones are others now")

    def state(self) -> Any:
        """Return a copy of the state."""
        with subject_acts("state_dict"):
            return copy.deepcopy(self.training.trainer.state_dict())

    def saved(self) -> tuple[ModelAlone, ModelAlone | None]:
        """Return copies of the reference, as it is now."""
        return self.alone.copy(), self.as_torch and self.as_torch.copy()

    def go_back(self, alone: ModelAlone, as_torch: ModelAlone | None) -> None:
        """Let the reference go on from where it was when a state was saved, which the subject has loaded."""
        self.alone = alone.copy()
        self.as_torch = reloaded(as_torch or alone)
        self.set_modes_alone()

    def load(self, state: Any, training: TrainingSide) -> None:
        with subject_acts("load_state_dict"):
            training.trainer.load_state_dict(state)
        self.training = training


def _declared(subject: Subject, error: Exception) -> bool:
    """Return whether the subject says of models like this one that it lacks them, in the words of this error."""
    stated = filter(None, subject.declared_lacks.values())
    return any(isinstance(error, lack.error) and str(error) == lack.reason for lack in stated)
