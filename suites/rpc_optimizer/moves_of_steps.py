"""The moves of ``rpc-optimizer`` that step: contexts, and what is in them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import torch.distributed.autograd as dist_autograd
from everyrank.suites.arena.subject_errors import in_a_line
from everyrank.suites.engine.subject import Subject
from everyrank.suites.moves.move import first_trained, last_trained, move, only_if
from everyrank.suites.moves.player import Player
from everyrank.suites.moves.together import exchanged
from everyrank.suites.rpc_optimizer.arena import error_of
from everyrank.suites.rpc_optimizer.contexts import HeldContext, wait_until_closed
from everyrank.suites.rpc_optimizer.model import Model
from everyrank.suites.rpc_optimizer.outline import Outline
from everyrank.suites.rpc_optimizer.sides import Data, Gradients, Sides

#: What is different about a context: its backward is run twice; or once more after its first step, which another step
#: follows; or there is one backward for each owner. A second graph that reaches the same owner never returns.
_CONTEXTS = ("", "again", "resumed", "split")


def _missing_needs(outline: Outline, missing: tuple[int, ...]) -> Iterator[str]:
    yield from only_if(set(missing) <= set(outline.trained))
    yield from outline.without_gradients(missing)


def _context_needs(outline: Outline, context: str, by: tuple[int, ...], missing: tuple[int, ...]) -> Iterator[str]:
    yield "contexts beside each other"
    owners = outline.owners(number for number in outline.trained if number not in missing)
    yield from only_if(owners)
    if context == "split":
        yield from only_if(len(owners) > 1 and outline.client(by) not in owners)
    if context == "resumed":
        yield from only_if(not outline.model.sparse)


def _some_missing_needs(outline: Outline, missing: tuple[int, ...]) -> Iterator[str]:
    yield from outline.without_gradients(missing)
    yield from only_if(set(missing) < set(outline.trained))


def not_held(outline: Outline) -> Sequence[str]:
    return only_if(outline.holder is None)


def trained_by(outline: Outline, by: int) -> Sequence[str]:
    """Return what a backward and a step of this optimizer need."""
    return only_if(outline.client((by,)) is not None and outline.trained)


def _held(outline: Outline, by: int = 0, missing: tuple[int, ...] = ()) -> None:
    outline.holder = outline.client((by,))
    outline.reached = tuple(outline.owners(number for number in outline.trained if number not in missing))


def _held_needs(outline: Outline, by: int) -> Sequence[str]:
    # Owners that a backward did not reach do not know the context of another thread.
    ours = outline.holder is not None and outline.client((by,)) == outline.holder
    return only_if(ours and set(outline.owners_of(by)) <= set(outline.reached))


def _released(outline: Outline) -> None:
    outline.holder = None


def _some_missing(outline: Outline) -> Sequence[tuple[int, ...]]:
    trained = tuple(outline.trained)
    return [(), (), (), *((number,) for number in trained), trained[1:], trained]


def _some_by(outline: Outline) -> Sequence[tuple[int, ...]]:
    count = len(outline.model.optimizers)
    return [(0,), *((by,) for by in range(count)), (0, 0), *((by, 0) for by in range(1, count)), (0, count - 1)]


def numbers(outline: Outline) -> Sequence[int]:
    """Return the numbers of the optimizers."""
    return range(len(outline.model.optimizers))


def second(outline: Outline) -> int | None:
    """Return the number of the second optimizer, if there is one."""
    return 1 if len(outline.model.optimizers) > 1 else None


def _second_alone(outline: Outline) -> tuple[int, ...] | None:
    return None if second(outline) is None else (1,)


def _both(outline: Outline) -> tuple[int, ...] | None:
    return None if second(outline) is None else (1, 0)


class StepMoves(Player):
    """What is done to train, on both sides. Each step has a client, and all ranks step the reference."""

    driven = True
    sides_of: ClassVar[type[Sides]] = Sides

    def __init__(self, subject: Subject, model: Model) -> None:
        super().__init__(subject, model)
        self.sides = self.sides_of(subject, model)
        self.held: HeldContext | None = None
        self.held_gradients: Gradients = {}

    def compare(self) -> str:
        self.sides.compare()
        return ""

    def close(self) -> None:
        if self.held is not None:
            self.held.close()
        self.sides.close()

    def is_client(self, by: int) -> bool:
        """Return whether this rank makes the steps of an optimizer."""
        return bool(self.model.optimizers[by].client == self.sides.rank)

    def exchanged(self, by: int, act: Callable[[], str]) -> str:
        """Let an optimizer's client act; return on all ranks the text that it returns."""
        client: int = self.model.optimizers[by].client
        return exchanged(lambda: act() if self.is_client(by) else "")[client]

    def refused(self, by: int, act: Callable[[Any], object]) -> bool:
        """Let a subject use a feature that it may refuse, with any error; return on all ranks whether it did."""

        def attempt() -> str:
            try:
                act(self.sides.ours[by])
            except (AttributeError, NotImplementedError, TypeError, RuntimeError, ValueError) as error:
                return in_a_line(error)
            return ""

        return bool(self.exchanged(by, attempt))

    # --- steps ---------------------------------------------------------------------------------------

    @move(
        "parity.trajectory",
        laws={"missing": "none.position", "context": "context.own"},
        needs=lambda outline, by: only_if(outline.client(by) is not None),
        needs_of={"missing": _missing_needs, "context": _context_needs},
        drawn={"by": _some_by, "missing": _some_missing, "context": ("", "", *_CONTEXTS)},
        kinds=(
            {},
            {"missing": first_trained},
            {"missing": last_trained},
            {"missing": lambda outline: tuple(outline.trained) or None},
            {"by": _second_alone},
            {"by": _both},
            {"by": (0, 0)},
            *({"context": context} for context in _CONTEXTS[1:]),
        ),
        beside=(
            {"missing": last_trained},
            {"by": _both},
            {"context": "again"},
            {"missing": first_trained},
            {"context": "split"},
            {"by": (0, 0)},
        ),
        often=5,
        writes=("parameter", "optimizer state", "step count"),
        reads=("gradient", "context", "frozen", "option", "parameter", "optimizer state", "step count"),
    )
    def step(self, by: tuple[int, ...] = (0,), missing: tuple[int, ...] = (), context: str = "") -> None:
        """Run a backward through all that is trained, without these, and then a step of each of these optimizers.

        ``again``: the backward is run twice. ``resumed``: it is run again after a first step of each optimizer.
        ``split``: there is a backward for each owner. ``older``: another thread has a newer context while they step.
        """
        sides = self.sides
        data = sides.data(sides.used(missing), self.number, linear=context == "resumed")
        gradients = sides.gradients(data, 2 if context == "again" else 1)
        for _ in ("first", "resumed")[: 2 if context == "resumed" else 1]:
            for each in by:
                sides.step_reference(each, gradients)
            gradients = {twin: gradient * 2 for twin, gradient in gradients.items()}
        if self.is_client(by[0]):
            self._step(by, data, context)

    def _step(self, by: Sequence[int], data: Data, context: str) -> None:
        sides = self.sides
        with dist_autograd.context() as context_id:
            if context == "split":
                for numbers in sides.by_owner(data).values():
                    sides.backward(context_id, {number: data[number] for number in numbers})
            elif context == "resumed":
                total = sides.remote_loss(data)
                dist_autograd.backward(context_id, [total], retain_graph=True)
                self._steps(by, context_id)
                dist_autograd.backward(context_id, [total])
            else:
                sides.backward(context_id, data, 2 if context == "again" else 1)
            with self._newer_context(data) if context == "older" else contextlib.nullcontext():
                self._steps(by, context_id)

    def _newer_context(self, data: Data) -> contextlib.closing[HeldContext]:
        newer_data = self.sides.data([*data], self.number + 100)
        return contextlib.closing(HeldContext(lambda newer: self.sides.backward(newer, newer_data)))

    def _steps(self, by: Sequence[int], context_id: int) -> None:
        for each in by:
            with self.sides.subject_acts():
                self.sides.ours[each].step(context_id)

    # --- a context that stays open, and wrong ones ---------------------------------------------------

    @move(
        "context.own",
        needs=lambda outline, by: ["contexts beside each other", *trained_by(outline, by), *not_held(outline)],
        needs_of={"missing": _some_missing_needs},
        then=_held,
        drawn={"by": numbers, "missing": _some_missing},
        kinds=({}, {"missing": last_trained}),
        often=2,
        shown_by="step_held",
        writes=("context",),
        reads=("parameter", "frozen"),
    )
    def hold(self, by: int = 0, missing: tuple[int, ...] = ()) -> None:
        """Let an optimizer's client open a context and run a backward there, and keep it open beside others."""
        sides = self.sides
        data = sides.data(sides.used(missing), self.number)
        self.held_gradients = sides.gradients(data)
        if self.is_client(by):
            self.held = HeldContext(lambda context_id: sides.backward(context_id, data))

    @move(
        "context.own",
        needs=_held_needs,
        drawn={"by": numbers},
        kinds=({}, {"by": second}),
        often=2,
        after="hold",
        writes=("parameter", "optimizer state", "step count"),
        reads=("gradient", "context", "frozen", "option", "parameter", "optimizer state", "step count"),
    )
    def step_held(self, by: int = 0) -> None:
        """Do a step with the context that is held, also if there has been one with it."""
        self.sides.step_reference(by, self.held_gradients)
        if self.held is not None:
            self._steps((by,), self.held.id)

    @move(
        "context.own",
        needs=lambda outline: only_if(outline.holder is not None),
        then=_released,
        after="hold",
        shown_by="step",
        writes=("context",),
        reads=("context",),
    )
    def release(self) -> None:
        """Close the context that is held."""
        if self.held is not None:
            self.held.close()
        self.held = None

    @move(
        "context.invalid",
        needs=lambda outline, by: ["wrong contexts", *trained_by(outline, by)],
        drawn={"context": ("unknown", "closed"), "by": numbers},
        kinds=({"context": "unknown"}, {"context": "closed"}),
        reads=("gradient", "context", "frozen", "option", "parameter", "optimizer state", "step count"),
    )
    def refuse(self, context: str, by: int = 0) -> None:
        """Do a step with a context that is ``unknown`` or ``closed``: it raises and moves nothing."""
        if not self.is_client(by):
            return
        sides = self.sides
        with dist_autograd.context() as context_id:
            sides.backward(context_id, sides.data(sides.used(), self.number))
        wait_until_closed(context_id, range(self.model.size))
        wrong = context_id if context == "closed" else context_id + 12345
        error_of(lambda: sides.ours[by].step(wrong), f"step with {context} context id {wrong}")
