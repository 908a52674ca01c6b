"""The moves of ``trainer`` that a user makes on the model and the optimizer, past the trainer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from everyrank.fixtures.failing import InjectedError
from everyrank.suites.arena.groups import error_of, names_rank, root, text_of
from everyrank.suites.arena.subject_errors import subject_acts
from everyrank.suites.compare.comparison import check
from everyrank.suites.errors import NotApplicable
from everyrank.suites.moves.move import NEVER, first_of, move, only_if
from everyrank.suites.trainer.batches import Failing
from everyrank.suites.trainer.model import Step
from everyrank.suites.trainer.moves_of_training import TrainingMoves
from everyrank.suites.trainer.outline import Outline
from everyrank.suites.trainer.steps import step_needs, stepped
from torch import nn
from torch.distributed.tensor import DTensor


def _writing_needs(outline: Outline) -> Iterator[str]:
    yield "written parameters"
    if outline.missed:
        yield "written parameters after errors"
    yield from only_if(not (outline.closures or outline.spoiled))


def _using_needs(outline: Outline, param: int) -> Iterator[str]:
    yield from only_if(param in outline.idle)
    if param in outline.frozen:
        yield "thawed parameters"
        yield "frozen parameters"
    else:
        yield "parameters that no rank uses later"


def _used(outline: Outline, param: int) -> None:
    outline.used |= {param}
    outline.thawed |= param in outline.frozen
    outline.frozen -= {param}


def _hooking_needs(outline: Outline, on: str) -> Iterator[str]:
    yield f"hooks of {'rate' if on == 'after' else on}s"
    yield from only_if(not (outline.closures or outline.spoiled or outline.sparse))


def _missing_needs(outline: Outline, by: int | None) -> Iterator[str]:
    yield "errors everywhere"
    if by is not None:
        yield "training after errors of a rank"
        yield from only_if(by in range(outline.model.size) and outline.model.size > 1)
    if outline.unused:
        yield "errors with unused parameters"
    if outline.missed:
        yield "errors in a row"
    # A forward that fails may have changed a buffer, and a hook a rate.
    yield from only_if(not (outline.closures or outline.spoiled or outline.fresh or outline.rate_hooked))
    yield from only_if(not outline.model.counts)


def _fetching_needs(outline: Outline) -> Iterator[str]:
    yield "loaders"
    yield from step_needs(outline)
    yield from only_if(not (outline.closures or outline.sparse))


def _missed(outline: Outline, **given: Any) -> None:
    outline.missed = True


def _hooked_by(outline: Outline, on: str) -> None:
    outline.rate_hooked |= on in ("rate", "after")


def _writing_buffers_needs(outline: Outline) -> Iterator[str]:
    yield "written buffers"
    yield from only_if(outline.model.buffer and not outline.spoiled)


#: The norm of a step that fails: it would shrink all gradients of the next one.
_NORM = 0.01

#: The first epoch has so many batches, the next one fewer, in turn, and a number for them that no move has.
_BATCHES, _EPOCH = 3, 1000


class UserMoves(TrainingMoves):
    """What is done with the model and the optimizer themselves, on both sides."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.hooks: list[Any] = []
        self.position = 0
        """How many batches of an epoch were fetched: all, if it was not ended after the last one."""
        self.epoch: Iterator[Any] | None = None
        """What is left of it."""
        self.epochs = 0
        """How many have ended."""

    @move(
        "written",
        needs=_writing_needs,
        needs_of={"anew": "parameters of new memory"},
        drawn={"anew": (False, True)},
        kinds=(),
        further={2: ({}, {"anew": True})},
        shown_by="step",
        writes=("parameter",),
    )
    def overwrite(self, anew: bool = False) -> None:
        """Halve the parameters of the model, in place or in new memory."""
        self._write(lambda model: model.named_parameters(), lambda value: value * 0.5, anew)

    @move(
        "written",
        needs=_writing_buffers_needs,
        needs_of={"anew": "buffers of new memory"},
        drawn={"anew": (False, True)},
        kinds=(),
        further={2: ({}, {"anew": True})},
        shown_by="step",
        writes=("buffer",),
    )
    def overwrite_buffers(self, anew: bool = False) -> None:
        """Add a quarter to the buffers of the model that are real numbers, in place or as new tensors."""
        self._write(lambda model: model.named_buffers(), lambda value: value + 0.25, anew)

    @move(
        "hooks",
        needs=_hooking_needs,
        then=_hooked_by,
        drawn={"on": ("gradient", "rate", "after")},
        kinds=(),
        further={2: ({"on": "gradient"}, {"on": "rate"}), 11: ({"on": "after"},)},
        shown_by="step",
        writes=("hook",),
        reads=("frozen",),
    )
    def hook(self, on: str) -> None:
        """Add hooks, until a state is loaded: they halve each gradient as it comes, or the rates before each step.

        ``after``: the rates are lower after each step.
        """
        with subject_acts("a hook"):
            training = self.sides.training
            self.hooks += _hooked(training.model, training.trainer, on)
        for alone in self.sides.references:
            self.hooks += _hooked(alone.model, alone, on)

    def unhook(self) -> None:
        """Remove all hooks."""
        while self.hooks:
            self.hooks.pop().remove()

    @move(
        "errors.everywhere",
        needs=_missing_needs,
        needs_of={
            "parts": lambda outline: ["microbatches", "errors of microbatches", *only_if(not outline.sparse)],
            "in_backward": NEVER,
            "clips": "clipping",  # of no complex number: the step fails before there is a norm
        },
        laws={"by": "errors.rank"},
        then=_missed,
        drawn={"parts": (1, 2), "by": lambda outline: [None, None, *range(outline.model.size)]},
        kinds=(),
        further={
            2: ({"clips": True}, {"parts": 2}),
            7: ({"by": lambda outline: outline.model.size - 1, "clips": True}, {"parts": 2, "by": 0}),
        },
        beside=({"clips": True}, {"by": 0}),
        shown_by="step",
        writes=("gradient", "generator"),
        reads=("gradient",),
    )
    def miss(self, parts: int = 1, in_backward: bool = False, by: int | None = None, clips: bool = False) -> None:
        """Let the last loss of a step raise on all ranks, or its backward: all raise, and nothing has changed.

        ``by``: it raises on this rank alone, and all raise an error that names it. ``clips``: the step has a norm.
        """
        training = self.sides.training
        computed = self.arena.meet("who computes a loss", "this rank" if training.computes else "")
        check(any(computed), "no rank computed the loss of the steps before")
        if not all(computed):
            raise NotApplicable("not every rank computes a loss")
        *first, last = training.batches(Step(parts, used=self.used), self.number, 0)
        fails = by in (None, self.arena.rank)
        failing = Failing(last.inputs, last.targets, last.parts, in_backward=in_backward)
        options = {"max_norm": _NORM} if clips else {}
        error = error_of(partial(training.trainer.step, *first, failing if fails else last, **options))
        if fails and error is not None and not isinstance(root(error), InjectedError):
            with subject_acts("step whose loss raises"):
                raise error
        raised = "on all ranks" if by is None else f"on rank {by}"
        check(error is not None, f"the loss raised {raised}, and step raised nothing")
        if not fails and by is not None:
            check(names_rank(error, by), f"the error does not name rank {by}: {text_of(error)}")

    @move(
        "state.resume",
        needs=_fetching_needs,
        then=stepped,
        kinds=(),
        drawn={"rest": (False, False, True), "lingers": (False, True)},
        further={7: ({}, {"rest": True})},
        beside=({"lingers": True},),
        shown_by="step",
        writes=("position",),  # for all else it is a step
        reads=("position",),
    )
    def fetch(self, rest: bool = False, lingers: bool = False) -> None:
        """Train on the next batch of an epoch, if the subject has a loader, which gives the one that is due.

        ``rest``: on all that are left of it. ``lingers``: after the last batch nobody asks for more until the next
        move, so a state may be saved before the epoch is over.
        """
        if self.position == len(batches := self._batches):
            self._end_epoch(batches)
            batches = self._batches
        for due in range(self.position, len(batches) if rest else self.position + 1):
            found = self._next_of(batches)
            number = next((each for each, batch in enumerate(batches) if found and _alike(found, batch)), None)
            check(number == due or not self._loads, f"batch {number} of an epoch came, and {due} was due")
            self.position = due + 1
            self.sides.step(Step(used=self.used), _EPOCH + self.epochs, due)
        if self.position == len(batches) and not lingers:
            self._end_epoch(batches)

    @property
    def _batches(self) -> list[Any]:
        """The batches of this epoch: each has others."""
        count, step = _BATCHES - self.epochs % 2, Step(used=self.used)
        return [self.sides.training.batches(step, _EPOCH + self.epochs, each)[0] for each in range(count)]

    @property
    def _loads(self) -> bool:
        """Whether the subject has a loader."""
        return callable(getattr(self.sides.training.trainer, "loader", None))

    def _next_of(self, batches: list[Any]) -> Any:
        """Return what comes next of the epoch, or of what a state that was loaded has left of it."""
        if not self._loads:
            return None
        with subject_acts("loader"):
            if self.epoch is None:
                self.epoch = iter(self.sides.training.trainer.loader(batches))
            return next(self.epoch, None)

    def _end_epoch(self, batches: list[Any]) -> None:
        check(self._next_of(batches) is None, "an epoch has more batches than were given")
        self.epoch, self.position, self.epochs = None, 0, self.epochs + 1

    @move(
        "parity.models",
        needs=lambda outline: only_if(not outline.closures),
        needs_of={"param": _using_needs},
        then=_used,
        drawn={"param": lambda outline: outline.idle},
        kinds=(),
        further={5: ({"param": lambda outline: first_of(outline.idle)},)},
        shown_by="step",
        writes=("use", "frozen"),
        reads=("parameter", "optimizer state", "step count", "option", "group", "frozen"),
    )
    def use(self, param: int) -> None:
        """Train a parameter from now on, by its number, which has been unused or frozen so far."""
        self.used |= {param}
        self._freeze(self.sides.frozen - {param})

    def _write(
        self,
        chosen: Callable[[nn.Module], Any],
        changed: Callable[[torch.Tensor], torch.Tensor],
        anew: bool,
    ) -> None:
        with subject_acts("the model"):
            _write(self.sides.training.model, chosen, changed, anew)
        for alone in self.sides.references:
            _write(alone.model, chosen, changed, anew=False)


def _hooked(model: nn.Module, trained: Any, on: str) -> list[Any]:
    """Return the handles of new hooks, of the parameters that are trained or of the optimizer."""
    if on == "rate":
        return [trained.optimizer.register_step_pre_hook(_lower_rates)]
    if on == "after":
        return [trained.optimizer.register_step_post_hook(partial(_lower_rates, factor=0.875))]
    return [each.register_hook(lambda gradient: gradient * 0.5) for each in model.parameters() if each.requires_grad]


def _alike(found: Any, batch: Any) -> bool:
    return torch.equal(found.inputs, batch.inputs)


def _lower_rates(optimizer: Any, args: Any, kwargs: Any, factor: float = 0.5) -> None:
    for group in optimizer.param_groups:
        group["lr"] *= factor


@torch.no_grad()
def _write(
    model: nn.Module, chosen: Callable[[nn.Module], Any], changed: Callable[[torch.Tensor], torch.Tensor], anew: bool
) -> None:
    for name, tensor in [*chosen(model)]:
        if not (tensor.is_floating_point() or tensor.is_complex()):
            continue
        value = changed(tensor.detach())
        if not anew:
            tensor.copy_(value)
        elif isinstance(tensor, nn.Parameter):
            tensor.data = _in_layout(value, tensor)
        else:
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, value)


def _in_layout(value: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return the value in new memory of the same layout, which may have gaps."""
    if isinstance(like, DTensor):
        return value
    return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device).copy_(value)
