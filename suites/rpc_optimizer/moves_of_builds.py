"""The moves of ``rpc-optimizer`` that build and drop optimizers, and what they refuse."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch.distributed.rpc as rpc
from everyrank.fixtures.optimizers import row, rows
from everyrank.suites.arena.subject_errors import in_a_line
from everyrank.suites.errors import Deviation
from everyrank.suites.moves.move import NEVER, move, only_if
from everyrank.suites.rpc_optimizer.arena import error_of
from everyrank.suites.rpc_optimizer.model import Optimizer, drawn_variants
from everyrank.suites.rpc_optimizer.moves_of_errors import ErrorMoves
from everyrank.suites.rpc_optimizer.moves_of_steps import numbers, second
from everyrank.suites.rpc_optimizer.outline import Outline, fits, needed_of
from everyrank.suites.rpc_optimizer.owners import non_leaf
from everyrank.suites.rpc_optimizer.planted import alive, check_gone, fail_to_build, on

#: Parameters that every optimizer refuses.
_REFUSED = {"empty-list": "an empty list of parameters", "non-leaf": "a parameter that is no leaf"}


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


def _all_owners(outline: Outline) -> Sequence[int]:
    return outline.owners(range(len(outline.model.params)))


def _invalid_names() -> list[str]:
    return sorted({bad.name for row in rows() for bad in row.invalid})


class BuildMoves(ErrorMoves):
    """What optimizers there are, on both sides."""

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
        self.build_anew(by, other_rate)

    def build_anew(self, by: int, other_rate: bool) -> None:
        """Replace an optimizer, on both sides, by one without its state."""
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
