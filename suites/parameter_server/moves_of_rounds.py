"""The moves of ``parameter-server`` that make a round: reports, taken or refused, and what trainers change."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from everyrank import current_world
from everyrank.suites.engine.subject import Subject
from everyrank.suites.moves.move import NEVER, Move, first_of, first_trained, last_trained, move, only_if
from everyrank.suites.moves.player import Player
from everyrank.suites.parameter_server import wrong_gradients
from everyrank.suites.parameter_server.arena import cancelling, without_rows
from everyrank.suites.parameter_server.model import Model
from everyrank.suites.parameter_server.outline import Outline
from everyrank.suites.parameter_server.sides import Sides
from everyrank.suites.parameter_server.wrong_gradients import NOT_FINITE


def _next_trainer(outline: Outline) -> int | None:
    return first_of(outline.absent)


def _last_trainer(outline: Outline) -> int | None:
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


# --- reports -----------------------------------------------------------------------------------------


def are_trained(outline: Outline, missing: tuple[int, ...]) -> Sequence[str]:
    return only_if(set(missing) <= set(outline.trained))


def _value_needs(outline: Outline, value: str, missing: tuple[int, ...]) -> Iterator[str]:
    yield "values that are not finite"
    yield from only_if(outline.model.non_finite and set(outline.model.wrong_by(value)[-1:]) - set(missing))


def _late_needs(outline: Outline) -> Iterator[str]:
    yield "expired rounds"
    yield from only_if(outline.model.expires and not outline.waiting and outline.model.trainers[1:])


def _reported(outline: Outline, trainer: int, missing: tuple[int, ...] = (), **given: Any) -> None:
    outline.report([trainer], missing)


def filled(outline: Outline, missing: tuple[int, ...] = (), **given: Any) -> None:
    outline.report(outline.absent, missing)


def _cancelling_needs(outline: Outline) -> Iterator[str]:
    yield "large gradients"
    yield from only_if(not outline.waiting and outline.model.trainers[1:])


def _refusing_needs(outline: Outline, defect: str, param: int) -> Iterator[str]:
    yield f"refuses {defect}"
    if defect in wrong_gradients.ONE:
        yield from only_if(outline.model.wrong_by(defect)[param:][:1])
    if defect in NOT_FINITE:
        yield from only_if(outline.model.non_finite is False)


def _able(outline: Outline) -> Sequence[str]:
    """Return the defects that a report may have: those of lists as often as all others."""
    able = [name for name in wrong_gradients.ONE if outline.model.wrong_by(name)]
    if outline.model.non_finite is not False:
        able = [name for name in able if name not in NOT_FINITE]
    return [*able, *wrong_gradients.ALL, *wrong_gradients.ALL]


def _expired(outline: Outline, late: bool = False) -> None:
    outline.reported |= set(outline.absent[-1:] if late else ())
    outline.waiting, outline.given = [], set()


# --- what trainers change ----------------------------------------------------------------------------


def _overwriting_needs(outline: Outline, trainer: int, answer: bool) -> Iterator[str]:
    if trainer not in outline.reported:
        yield NEVER
        return
    worker = outline.model.trainers[trainer]
    yield from only_if(worker in (None, 0))  # other trainers only have copies
    if answer:
        yield "answers that are kept or changed"
        yield from only_if(outline.answered)
    elif trainer in outline.waiting:
        yield "gradients changed once reported"
        yield from only_if(worker is None)  # RPC itself reads gradients until they are sent
    else:
        yield "gradients changed once answered"


def _with_answer(outline: Outline) -> int | None:
    own = [trainer for trainer, worker in enumerate(outline.model.trainers) if worker in (None, 0)]
    return first_of(own) if outline.answered else None


def _waiting(outline: Outline) -> int | None:
    return first_of([trainer for trainer in outline.waiting if outline.model.trainers[trainer] is None])


def _serve() -> None:
    """Do nothing on a rank whose agent serves rank 0."""


class RoundMoves(Player):
    """What makes rounds, on both sides."""

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
        laws={"missing": "none", "value": "errors.gradient", "bare": "none", "late": "errors.dead-trainer"},
        needs=lambda outline, missing: outline.missing_needs(missing, 1),
        needs_of={
            "trainer": lambda outline, trainer: only_if(trainer in outline.absent),
            "missing": are_trained,
            "value": _value_needs,
            "bare": lambda outline: only_if(any(param.sparse and not param.frozen for param in outline.model.params)),
            "late": _late_needs,
        },
        then=_reported,
        drawn={
            "trainer": lambda outline: outline.absent,
            "missing": some,
            "value": lambda outline: ("", *NOT_FINITE) if outline.model.non_finite else ("",),
        },
        kinds=(
            {"trainer": _next_trainer},
            {"trainer": _last_trainer},
            {"trainer": _next_trainer, "missing": first_trained},
            {"trainer": _last_trainer, "missing": _every_param},
            {"trainer": _last_trainer, "value": "nan"},
        ),
        further={
            1: ({"trainer": _next_trainer, "bare": True}, {"trainer": _last_trainer, "bare": True}),
            2: ({"trainer": _next_trainer, "late": True},),
        },
        often=4,
        writes=("gradient", "round", "answer", "parameter", "optimizer state", "step count"),
        reads=READ,
        reads_further={4: ("frozen",)},
    )
    def report(
        self, trainer: int, missing: tuple[int, ...] = (), value: str = "", bare: bool = False, late: bool = False
    ) -> None:
        """Let a trainer report; all are answered when the round is full.

        ``missing``: it reports None for these parameters. ``value``: one number is this and not finite,
        of the last parameter that can have it. ``bare``: its sparse gradients have no rows. ``late``: it begins a
        round when half of the time limit of a round has passed since what came before.
        """
        if late:
            self.sides.let_time_pass()
        part = self.sides.gradients.part(missing)
        part = without_rows(part) if bare else part
        self.sides.report(trainer, self.sides.gradients.changed(part, value, -1) if value else part)

    @move(
        "parity.rounds",
        laws={"missing": "clean-round", "large": "clean-round", "cancels": "clean-round", "reverse": "wait"},
        needs=lambda outline, missing: outline.missing_needs(missing, len(outline.absent)),
        needs_of={
            "missing": are_trained,
            # The sum with gradients that are not large would depend on their order.
            "large": lambda outline: ["large gradients", *only_if(not outline.waiting)],
            "cancels": _cancelling_needs,
        },
        then=filled,
        drawn={"missing": some, "reverse": (False, True), "large": (False, False, True)},
        kinds=({}, {"reverse": True}, {"missing": first_trained}, {"large": True}),
        further={
            1: ({"cancels": True}, {"cancels": True, "reverse": True}),
            3: ({"missing": last_trained}, {"missing": _every_param}),
        },
        often=4,
        writes=("gradient", "round", "answer", "parameter", "optimizer state", "step count"),
        reads=READ,
        reads_further={4: ("frozen",)},
    )
    def fill(
        self, missing: tuple[int, ...] = (), reverse: bool = False, large: bool = False, cancels: bool = False
    ) -> None:
        """Let all trainers report that have not, in their order or in reverse, and so make the round full.

        ``cancels``: the first and the last of them have extreme gradients of opposite signs, and others have zeros.
        """
        absent = self.sides.absent
        for trainer in reversed(absent) if reverse else absent:
            part = self.sides.gradients.part(missing, large)
            sign = float(trainer == absent[0]) - float(trainer == absent[-1])
            self.sides.report(trainer, cancelling(part, sign) if cancels else part)

    @move(
        "errors.gradient",
        needs=_refusing_needs,
        needs_of={"trainer": lambda outline, trainer: only_if(trainer in outline.absent)},
        drawn={
            "trainer": lambda outline: outline.absent,
            "defect": _able,
            "param": (0, 1, 2, -1),
        },
        kinds=(
            {"trainer": _next_trainer, "defect": "shape-broadcasts"},
            {"trainer": _last_trainer, "defect": "dtype-narrower", "param": -1},
            {"trainer": _last_trainer, "defect": "count-fewer"},
            {"trainer": _next_trainer, "defect": "nan", "param": -1},
        ),
        often=3,
        reads=("round",),
    )
    def refuse(self, trainer: int, defect: str, param: int = 0) -> None:
        """Let a trainer make a wrong report, which is refused: the round is as if it had not reported.

        ``defect``: a name in ``wrong_gradients``, of a gradient or of the list of all. ``param``: which one of the
        parameters it is, among those for which it makes a gradient wrong.
        """
        self.sides.refused(
            self.sides.send(trainer, self.sides.gradients.changed(self.sides.gradients.part(), defect, param)), defect
        )

    @move(
        "errors.dead-trainer",
        needs=lambda outline, late: ["expired rounds", *only_if(outline.model.expires and (late or outline.waiting))],
        needs_of={"late": _late_needs},
        then=_expired,
        drawn={"late": (False, False, True)},
        further={2: ({"late": True},)},
        often=3,
        after="report",
        writes=("round",),
        reads=("round",),
    )
    def expire(self, late: bool = False) -> None:
        """Let nobody else report: all that have are refused in time, and not before that.

        ``late``: a trainer begins a round when half of the time limit of a round has passed since what came before.
        """
        if late:
            self.sides.let_time_pass()
            self.sides.report(self.sides.absent[-1], self.sides.gradients.part())
        self.sides.expired()

    @move(
        "alias",
        needs=_overwriting_needs,
        drawn={"trainer": lambda outline: range(len(outline.model.trainers)), "answer": (False, True)},
        kinds=({"trainer": _waiting}, {"trainer": _with_answer}, {"trainer": _with_answer, "answer": True}),
        often=2,
        after="report",
        writes=("gradient", "answer"),
        reads=("gradient", "answer"),
    )
    def overwrite(self, trainer: int, answer: bool = False) -> None:
        """Let a trainer overwrite the gradients that it reported last, or the last answer that it got."""
        if answer:
            self.sides.overwrite_answer(trainer)
        else:
            self.sides.overwrite_gradients(trainer)
