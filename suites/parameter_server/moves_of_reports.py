"""The moves of ``parameter-server`` by which trainers report, one by one or all that are missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from everyrank import current_world
from everyrank.suites.engine.subject import Subject
from everyrank.suites.moves.move import Move, first_of, first_trained, last_trained, move, only_if
from everyrank.suites.moves.player import Player
from everyrank.suites.parameter_server.arena import cancelling, without_rows
from everyrank.suites.parameter_server.model import Model
from everyrank.suites.parameter_server.outline import Outline
from everyrank.suites.parameter_server.sides import Sides
from everyrank.suites.parameter_server.wrong_gradients import NOT_FINITE


def next_trainer(outline: Outline) -> int | None:
    return first_of(outline.absent)


def last_trainer(outline: Outline) -> int | None:
    return first_of(reversed(outline.absent))


def _every_param(outline: Outline) -> tuple[int, ...] | None:
    return tuple(outline.model.trained) or None


def some(outline: Outline) -> Sequence[tuple[int, ...]]:
    trained = outline.model.trained
    return [(), (), *((number,) for number in trained), *([tuple(trained)] if trained[1:] else [])]


#: What each round looks at.
READ = (
    "gradient", "round", "answer", "parameter", "optimizer state", "step count", "buffer", "failed update"
)  # fmt: skip


#: A server that keeps to the tensors of trainers, which it is asked not to, sums in their memory.
_SHARED = "gradients changed once reported"


def are_trained(outline: Outline, missing: tuple[int, ...]) -> Sequence[str]:
    return only_if(set(missing) <= set(outline.trained))


def _value_needs(outline: Outline, value: str, missing: tuple[int, ...]) -> Iterator[str]:
    yield "values that are not finite"
    yield from only_if(outline.model.non_finite and set(outline.model.wrong_by(value)[-1:]) - set(missing))


def _again_needs(outline: Outline, waiting: bool) -> Iterator[str]:
    yield "reports again"
    yield from only_if(waiting and not outline.model.expires)  # in a round that has ended, it would begin another


def late_needs(outline: Outline) -> Iterator[str]:
    yield "expired rounds"
    yield from only_if(outline.model.expires and not outline.waiting and outline.model.trainers[1:])


def _reported(outline: Outline, trainer: int, missing: tuple[int, ...] = (), **given: Any) -> None:
    outline.report([trainer], missing)


def filled(outline: Outline, missing: tuple[int, ...] = (), **given: Any) -> None:
    outline.report(outline.absent, missing)


def _cancelling_needs(outline: Outline) -> Iterator[str]:
    yield "large gradients"
    yield from only_if(not outline.waiting and outline.model.trainers[1:])


def _serve() -> None:
    """Do nothing on a rank whose agent serves rank 0."""


class ReportMoves(Player):
    """The reports of trainers, on both sides."""

    sides: Sides
    """Of the server's rank; the others serve it."""
    sides_of: ClassVar[type[Sides]] = Sides

    def __init__(self, subject: Subject, model: Model) -> None:
        super().__init__(subject, model)
        if self.leads:
            self.sides = self.sides_of(subject, model)

    @property
    def leads(self) -> bool:
        """Whether this rank is the server's."""
        return current_world().rank == 0

    def make(self, move: Move, act: Callable[[], None], arguments: Mapping[str, Any]) -> None:
        __tracebackhide__ = True
        super().make(move, act if self.leads else _serve, arguments)

    def compare(self) -> str:
        if self.leads:
            self.sides.compare()
        return ""

    def end(self) -> str:
        """Fill the round that is open."""
        if self.leads and self.sides.waiting:
            for trainer in self.sides.absent:
                self.sides.report(trainer, self.sides.gradients.part())
        return self.compare()

    @move(
        "parity.rounds",
        laws={
            "again": "wait",
            "missing": "none",
            "value": "errors.gradient",
            "bare": "none",
            "late": "errors.dead-trainer",
        },
        needs=lambda outline, missing: outline.missing_needs(missing, 1),
        needs_of={
            "trainer": lambda outline, trainer: only_if(trainer in outline.absent),
            "missing": are_trained,
            "value": _value_needs,
            "bare": lambda outline: only_if(any(param.sparse and not param.frozen for param in outline.model.params)),
            "late": late_needs,
            "shared": lambda outline, value: [_SHARED, *only_if(not value)],
            "again": lambda outline: _again_needs(outline, bool(outline.waiting)),
        },
        then=_reported,
        drawn={
            "trainer": lambda outline: outline.absent,
            "missing": some,
            "value": lambda outline: ("", *NOT_FINITE) if outline.model.non_finite else ("",),
            "shared": ("", "", "", "views", "number"),
            "again": (False, False, False, True),
        },
        kinds=(
            {"trainer": next_trainer},
            {"trainer": last_trainer},
            {"trainer": next_trainer, "missing": first_trained},
            {"trainer": last_trainer, "missing": _every_param},
            {"trainer": last_trainer, "value": "nan"},
        ),
        further={
            1: ({"trainer": next_trainer, "bare": True}, {"trainer": last_trainer, "bare": True}),
            2: ({"trainer": next_trainer, "late": True},),
        },
        beside=(
            {"shared": "views"},
            {"again": True},
            {"missing": last_trained},
            {"shared": "number", "again": True},
            {"shared": "number"},
        ),
        often=4,
        writes=("gradient", "round", "answer", "parameter", "optimizer state", "step count"),
        reads=READ,
        reads_further={4: ("frozen",)},
    )
    def report(
        self,
        trainer: int,
        missing: tuple[int, ...] = (),
        value: str = "",
        bare: bool = False,
        late: bool = False,
        shared: str = "",
        again: bool = False,
    ) -> None:
        """Let a trainer report; all are answered when the round is full.

        ``missing``: it reports None for these parameters. ``value``: one number is this and not finite,
        of the last parameter that can have it. ``bare``: its sparse gradients have no rows. ``late``: it begins a
        round when half of the time limit of a round has passed since what came before. ``shared``: its gradients are
        ``views`` of one tensor, one and the same where the shapes are; or one ``number``, expanded. ``again``: before
        it, those that wait report again what they have reported, and count once.
        """
        if again:
            self.sides.report_again()
        if late:
            self.sides.let_time_pass()
        part = self.sides.gradients.part(missing)
        part = without_rows(part) if bare else part
        part, own = self.sides.gradients.alike(part, shared) if shared else (part, None)
        self.sides.report(trainer, self.sides.gradients.changed(part, value, -1) if value else part, own=own)

    @move(
        "parity.rounds",
        laws={
            "again": "wait",
            "missing": "clean-round",
            "large": "clean-round",
            "cancels": "clean-round",
            "reverse": "wait",
        },
        needs=lambda outline, missing: outline.missing_needs(missing, len(outline.absent)),
        needs_of={
            "missing": are_trained,
            # The sum with gradients that are not large would depend on their order.
            "large": lambda outline: ["large gradients", *only_if(not outline.waiting)],
            "cancels": _cancelling_needs,
            "shared": lambda outline, cancels: [_SHARED, *only_if(not cancels)],
            "again": lambda outline: _again_needs(outline, bool(outline.waiting or outline.absent[1:])),
        },
        then=filled,
        drawn={
            "missing": some,
            "reverse": (False, True),
            "large": (False, False, True),
            "shared": ("", "", "", "views", "number", "trainers"),
            "again": (False, False, False, True),
        },
        kinds=({}, {"reverse": True}, {"missing": first_trained}, {"large": True}),
        further={
            1: ({"cancels": True}, {"cancels": True, "reverse": True}),
            3: ({"missing": last_trained}, {"missing": _every_param}),
        },
        beside=(
            {"shared": "trainers"},
            {"missing": last_trained, "shared": "views"},
            {"again": True},
            {"reverse": True},
            {"shared": "views"},
            {"shared": "number"},
        ),
        often=4,
        writes=("gradient", "round", "answer", "parameter", "optimizer state", "step count"),
        reads=READ,
        reads_further={4: ("frozen",)},
    )
    def fill(
        self,
        missing: tuple[int, ...] = (),
        reverse: bool = False,
        large: bool = False,
        cancels: bool = False,
        shared: str = "",
        again: bool = False,
    ) -> None:
        """Let all trainers report that have not, in their order or in reverse, and so make the round full.

        ``cancels``: the first and the last of them have extreme gradients of opposite signs, and others have zeros.
        ``shared``: as in a report; or all ``trainers`` report the same tensors. ``again``: as in a report, before the
        last of them.
        """
        absent, same = self.sides.absent, None
        for trainer in reversed(absent) if reverse else absent:
            if again and self.sides.absent == [trainer]:
                self.sides.report_again()
            part, own = self.sides.gradients.part(missing, large), None
            if shared:
                part, own = same or self.sides.gradients.alike(part, shared)
                same = (part, own) if shared == "trainers" else None
            sign = float(trainer == absent[0]) - float(trainer == absent[-1])
            self.sides.report(trainer, cancelling(part, sign) if cancels else part, own=own)
