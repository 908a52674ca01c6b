"""The moves of ``rpc-optimizer`` that fail, wait and meet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from everyrank.fixtures.failing import KEEPING
from everyrank.suites.arena.subject_errors import in_a_line
from everyrank.suites.compare.comparison import check
from everyrank.suites.errors import Deviation
from everyrank.suites.moves.move import NEVER, by_model, first_of, move, only_if
from everyrank.suites.rpc_optimizer.arena import error_of
from everyrank.suites.rpc_optimizer.contexts import HeldContext
from everyrank.suites.rpc_optimizer.moves_of_changes import ChangeMoves
from everyrank.suites.rpc_optimizer.moves_of_steps import numbers, second
from everyrank.suites.rpc_optimizer.outline import Outline
from everyrank.suites.rpc_optimizer.planted import (
    arm,
    on,
    step_while_held,
    steps_together,
    text_of,
    wrong_in_error,
)
from everyrank.suites.rpc_optimizer.sides import Data


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
    if not any(0 not in model.params[number].shape for number in first & other):
        yield "steps of other parameters at the same time"
    # With several owners it would be undefined in which order each does the two steps.
    yield from only_if(len(outline.owners(first | other)) == 1)


def _first_owner(outline: Outline) -> int | None:
    return first_of(outline.stepped(0))


def _last_owner(outline: Outline) -> int | None:
    return first_of(reversed(outline.stepped(0)))


def _other_owners(outline: Outline) -> tuple[int, ...] | None:
    return tuple(outline.stepped(0)[:-1]) or None


def _owners(outline: Outline) -> Sequence[int]:
    return outline.stepped(0)


class ErrorMoves(ChangeMoves):
    """What goes wrong in steps, and what they wait for, on both sides."""

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
            "letters": lambda outline, foreign: ["letters in errors", *only_if(not foreign)],
        },
        drawn={
            "owner": _owners,
            "also": lambda outline: [(), (), _other_owners(outline) or ()],
            "foreign": (False, False, True),
            "by": numbers,
            "text": KEEPING,
            "letters": (False, True),
        },
        kinds=(
            {"owner": _last_owner, "text": by_model(KEEPING)},
            {"owner": _last_owner, "also": _other_owners, "text": by_model(KEEPING)},
            {"owner": _first_owner, "foreign": True},
        ),
        beside=({"letters": True}, {"by": second}),
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
        letters: bool = False,
    ) -> None:
        """Do a step that fails on these owners: it raises, and the others have stepped.

        ``foreign``: the error cannot be unpickled. ``slow``: this owner is held, and the step waits for it.
        ``text``: what stands around the text of the error. ``letters``: also some outside ASCII.
        """
        sides, failing = self.sides, sorted({owner, *also})
        data = sides.data(sides.used(), self.number)
        sides.step_reference(by, sides.gradients(data), without=failing)
        if not self.is_client(by):
            return
        for each in failing:
            on(each, arm, "unpicklable" if foreign else text_of(each, text, letters))
        label = f"a step that fails on {' and '.join(f'worker{each}' for each in failing)}"
        label += " with an error that cannot travel" if foreign else ""
        if slow is None:
            error = error_of(lambda: sides.step_in_own_context(sides.ours[by], data), label)
        else:
            raised = self._step_while_held(slow, by, data)
            check(bool(raised), f"{label} did not raise")
            error = raised[0]
        for problem in wrong_in_error(error, failing, foreign, text, letters):
            self.check(False, problem)

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
        """Do two steps on one owner at the same time, also of other parameters: they are serialized."""
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
