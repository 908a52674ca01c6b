"""The moves of ``rpc-optimizer`` that fail, wait, meet, and build and drop optimizers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch.distributed.rpc as rpc
from everyrank.fixtures.optimizers import row, rows
from everyrank.suites.arena.subject_errors import in_a_line
from everyrank.suites.compare.comparison import check
from everyrank.suites.errors import Deviation
from everyrank.suites.moves.move import NEVER, by_model, first_of, move, only_if
from everyrank.suites.rpc_optimizer.arena import error_of
from everyrank.suites.rpc_optimizer.contexts import HeldContext
from everyrank.suites.rpc_optimizer.model import Optimizer, drawn_variants
from everyrank.suites.rpc_optimizer.moves_of_changes import ChangeMoves
from everyrank.suites.rpc_optimizer.moves_of_steps import numbers, second
from everyrank.suites.rpc_optimizer.outline import Outline, fits, needed_of
from everyrank.suites.rpc_optimizer.owners import non_leaf
from everyrank.suites.rpc_optimizer.planted import (
    alive,
    arm,
    check_gone,
    fail_to_build,
    on,
    step_while_held,
    steps_together,
    text_of,
    wrong_in_error,
)
from everyrank.suites.rpc_optimizer.sides import Data

#: What stands around the text of an error.
_TEXTS = ("", "lines", "format")

#: Parameters that every optimizer refuses.
_REFUSED = {"empty-list": "an empty list of parameters", "non-leaf": "a parameter that is no leaf"}


def _planted(outline: Outline, by: int, owner: int | None) -> bool:
    """Return whether this optimizer can be made to fail, or to wait, on this owner."""
    known = outline.client((by,)) is not None and outline.model.optimizers[by].own == "planted"
    return known and owner in outline.stepped(by)


def _together_needs(outline: Outline, by: tuple[int, int]) -> Iterator[str]:
    yield "steps at the same time"
    if outline.client(by) is None or not all(_planted(outline, each, outline.owners_of(each)[0]) for each in by):
        yield NEVER
        return
    model = outline.model
    first, other = ({model.tensor(number) for number in model.optimizers[each].params} for each in by)
    # With several owners it would be undefined in which order each does the two steps.
    owners = outline.owners(first | other)
    shared = [number for number in first & other if model.params[number].shape.count(0) == 0]
    if len(owners) > 1 or not shared or not set(owners) <= set(outline.owners(outline.trained)):
        yield NEVER


def _invalid_needs(outline: Outline, optimizer: str, name: str) -> Iterator[str]:
    yield f"refuses {name}" if name in _REFUSED else f"{optimizer} refuses {name}"
    yield from only_if(name != "non-leaf" or outline.trained)


def _another_needs(outline: Outline, name: str, variant: str, given: str) -> Iterator[str]:
    made = Optimizer(outline.model.optimizers[0].params, name, variant, given=given)
    known = variant in {each.name for each in drawn_variants(made.row)}
    if not outline.trained or not known or not fits(made, outline.model):
        yield NEVER
        return
    yield from needed_of(made, outline.model)
    if outline.frozen and "sparse" not in made.row.needs:
        yield f"{name} with missing gradients"


def _first_owner(outline: Outline) -> int | None:
    return first_of(outline.stepped(0))


def _last_owner(outline: Outline) -> int | None:
    return first_of(reversed(outline.stepped(0)))


def _other_owners(outline: Outline) -> tuple[int, ...] | None:
    return tuple(outline.stepped(0)[:-1]) or None


def _owners(outline: Outline) -> Sequence[int]:
    return outline.stepped(0)


def _all_owners(outline: Outline) -> Sequence[int]:
    return outline.owners(range(len(outline.model.params)))


def _invalid_names() -> list[str]:
    return sorted({bad.name for row in rows() for bad in row.invalid})


class ErrorMoves(ChangeMoves):
    """What goes wrong, and what optimizers there are, on both sides."""

    # --- errors, and owners that wait ----------------------------------------------------------------

    @move(
        "errors.step",
        laws={"also": "errors.several", "foreign": "errors.unpicklable"},
        needs=lambda outline, owner, by: ["errors in steps", *only_if(_planted(outline, by, owner))],
        needs_of={
            "also": lambda outline, also, foreign, by: [
                "errors in several steps",
                *only_if(not foreign and all(_planted(outline, by, owner) for owner in also)),
            ],
            "foreign": "errors that cannot travel",
        },
        drawn={
            "owner": _owners,
            "also": lambda outline: [(), (), _other_owners(outline) or ()],
            "foreign": (False, False, True),
            "by": numbers,
            "text": _TEXTS,
        },
        kinds=(
            {"owner": _last_owner, "text": by_model(_TEXTS)},
            {"owner": _last_owner, "also": _other_owners, "text": by_model(_TEXTS)},
            {"owner": _first_owner, "foreign": True},
        ),
        often=4,
        shown_by="step",
        writes=("parameter", "optimizer state", "step count"),
        reads=("gradient", "context", "frozen", "option", "parameter", "optimizer state", "step count"),
    )
    def fail(
        self,
        owner: int,
        also: tuple[int, ...] = (),
        foreign: bool = False,
        by: int = 0,
        slow: int | None = None,
        text: str = "",
    ) -> None:
        """Do a step that fails on these owners: it raises, and the others have stepped.

        ``foreign``: the error cannot be unpickled. ``slow``: this owner is held, and the step waits for it.
        ``text``: what stands around the text of the error.
        """
        sides, failing = self.sides, sorted({owner, *also})
        data = sides.data(sides.used(), self.number)
        sides.step_reference(by, sides.gradients(data), without=failing)
        if not self.is_client(by):
            return
        for each in failing:
            on(each, arm, "unpicklable" if foreign else text_of(each, text))
        label = f"a step that fails on {' and '.join(f'worker{each}' for each in failing)}"
        label += " with an error that cannot travel" if foreign else ""
        if slow is None:
            error = error_of(lambda: sides.step_in_own_context(sides.ours[by], data), label)
        else:
            raised = self._step_while_held(slow, by, data)
            check(bool(raised), f"{label} did not raise")
            error = raised[0]
        for text in wrong_in_error(error, failing, foreign):
            self.check(False, text)

    def _step_while_held(self, owner: int, by: int, data: Data) -> list[Exception]:
        others = [rank for rank in range(self.model.size) if rank != self.sides.rank]
        return step_while_held(lambda: self.sides.step_in_own_context(self.sides.ours[by], data), owner, others)

    @move(
        "wait",
        needs=lambda outline, owner, by: ["owners that wait", *only_if(_planted(outline, by, owner))],
        drawn={"owner": _owners, "by": numbers},
        kinds=({"owner": _last_owner},),
        often=2,
        writes=("parameter", "optimizer state", "step count"),
        reads=("gradient", "context", "frozen", "option", "parameter", "optimizer state", "step count"),
    )
    def wait(self, owner: int, by: int = 0) -> None:
        """Do a step that waits on this owner until the kit releases it: it does not return earlier."""
        sides = self.sides
        data = sides.data(sides.used(), self.number)
        sides.step_reference(by, sides.gradients(data))
        if self.is_client(by):
            for error in self._step_while_held(owner, by, data):
                raise Deviation(f"a step in which an owner waits raised {in_a_line(error)}") from error

    @move(
        "concurrent.same-client",
        needs=_together_needs,
        drawn={"by": lambda outline: [(0, 0), (0, len(outline.model.optimizers) - 1)]},
        kinds=({}, {"by": lambda outline: None if second(outline) is None else (0, 1)}),
        often=2,
        writes=("parameter", "optimizer state", "step count"),
        reads=("gradient", "context", "frozen", "option", "parameter", "optimizer state", "step count"),
    )
    def together(self, by: tuple[int, int] = (0, 0)) -> None:
        """Do two steps of a parameter at the same time: they are serialized."""
        sides = self.sides
        data = [sides.data(sides.used(), number) for number in (self.number, self.number + 100)]
        gradients = [sides.gradients(each) for each in data]
        for each, its_gradients in zip(by, gradients, strict=True):
            sides.step_reference(each, its_gradients)
        if not self.is_client(by[0]):
            return
        contexts = [HeldContext(lambda context_id, each=each: sides.backward(context_id, each)) for each in data]  # type: ignore[misc]
        ours = [sides.ours[each] for each in by]
        try:
            (owner,) = {
                self.model.params[number].owner for each in by for number in self.model.optimizers[each].params
            }
            errors = steps_together(owner, lambda: ours[0].step(contexts[0].id), lambda: ours[1].step(contexts[1].id))
        finally:
            for context in contexts:
                context.close()
        check(not errors, f"a step beside another raised {in_a_line(errors[0]) if errors else ''}")

    # --- building ------------------------------------------------------------------------------------

    @move(
        "errors.constructor",
        needs=lambda outline, owner: ["errors in constructors", *only_if(owner in _all_owners(outline))],
        drawn={"owner": _all_owners},
        kinds=({"owner": lambda outline: outline.owners_of(0)[-1]},),
        apart=True,
    )
    def fail_build(self, owner: int) -> None:
        """Build an optimizer whose constructor fails on one worker: nothing of it stays."""
        sides = self.sides
        if sides.rank:
            return
        rrefs = sides.rrefs([number for number, param in enumerate(self.model.params) if param.same_as is None])
        owners = sorted({param.owner for param in self.model.params})
        fail_to_build(lambda kind, **kwargs: sides.build_over(kind, rrefs, **kwargs), owner, owners)

    @move(
        "errors.arguments",
        needs=_invalid_needs,
        drawn={
            "optimizer": lambda outline: [row.name for row in rows()],
            "name": lambda outline: [*_REFUSED, *_invalid_names()],
        },
        kinds=({}, {"name": "non-leaf"}, {"name": "momentum-negative"}),
        apart=True,
    )
    def invalid(self, optimizer: str = "SGD", name: str = "empty-list") -> None:
        """Build an optimizer with arguments that torch.optim refuses, without parameters, or with a non-leaf."""
        sides = self.sides
        if sides.rank:
            return
        number = next((n for n, twin in enumerate(sides.twins) if twin.requires_grad), 0)
        rrefs, kwargs, wanted = sides.rrefs([number]), {"lr": 0.1}, ValueError
        if name == "empty-list":
            rrefs = []
        elif name == "non-leaf":
            rrefs = [rpc.remote(rrefs[0].owner(), non_leaf, args=(rrefs[0],))]
        else:
            refused = next(each for each in row(optimizer).invalid if each.name == name)
            kwargs, wanted = refused.make(), refused.error  # type: ignore[assignment]
        label = _REFUSED.get(name, name)
        error = error_of(lambda: sides.build_over(row(optimizer).optimizer, rrefs, **kwargs), label)
        if not isinstance(error, wanted):
            text = f"{label} raises {type(error).__name__}, not {wanted.__name__}: {in_a_line(error)}"
            raise Deviation(text) from error  # a subject may have declared this error as its refusal

    @move(
        "clean.rrefs",
        needs=lambda outline, by: ["dropped optimizers", *only_if(outline.client((by,)) is not None)],
        drawn={"by": numbers, "other_rate": (False, True)},
        kinds=({}, {"by": second, "other_rate": True}),
        shown_by="step",
        writes=("optimizer state", "step count", "option"),
        reads=("context",),
    )
    def renew(self, by: int = 0, other_rate: bool = False) -> None:
        """Drop an optimizer, so that no owner keeps it, and build it anew, without its state."""
        sides, made = self.sides, self.model.optimizers[by]
        if self.is_client(by):
            before = {
                owner: on(owner, alive) for owner in {self.model.params[number].owner for number in made.params}
            }
            del sides.ours[by]
            if made.own == "planted":
                check_gone(before, lambda then, now: not then <= now, "an optimizer that was dropped still lives on")
        sides.references[by] = sides.build_reference(made, other_rate)
        if self.is_client(by):
            sides.ours[by] = sides.build(made, other_rate)

    @move(
        "parity.one-step",
        needs=_another_needs,
        drawn={
            "name": lambda outline: [row.name for row in rows()],
            "variant": lambda outline: sorted({each.name for row in rows() for each in drawn_variants(row)}),
            "given": ("named", "named", "positional", "explicit"),
        },
        kinds=({"variant": "momentum"}, {"name": "Adam", "variant": "everything"}),
        often=2,
        writes=("parameter",),
        reads=("parameter", "gradient", "context", "frozen"),
    )
    def another(self, name: str = "SGD", variant: str = "lr", given: str = "named") -> None:
        """Build one more optimizer over the first one's parameters, do two steps, and drop it."""
        sides = self.sides
        first = self.model.optimizers[0]
        made = Optimizer(first.params, name, variant, given=given, client=first.client)
        data = sides.data(sides.used(), self.number)
        sides.references.append(sides.build_reference(made))
        for _ in range(2):
            sides.step_reference(-1, sides.gradients(data))
        sides.references.pop()
        if self.is_client(0):
            ours = sides.build(made)
            for _ in range(2):
                with sides.subject_acts():
                    sides.step_in_own_context(ours, data)
