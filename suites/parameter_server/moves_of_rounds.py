"""The moves of ``parameter-server`` in which a report is refused, or none comes, and what trainers change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from everyrank.suites.moves.move import NEVER, first_of, move, only_if
from everyrank.suites.parameter_server import wrong_gradients
from everyrank.suites.parameter_server.moves_of_reports import ReportMoves, last_trainer, late_needs, next_trainer
from everyrank.suites.parameter_server.outline import Outline
from everyrank.suites.parameter_server.wrong_gradients import NOT_FINITE


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


class RoundMoves(ReportMoves):
    """What else makes rounds, on both sides."""

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
            {"trainer": next_trainer, "defect": "shape-broadcasts"},
            {"trainer": last_trainer, "defect": "dtype-narrower", "param": -1},
            {"trainer": last_trainer, "defect": "count-fewer"},
            {"trainer": next_trainer, "defect": "nan", "param": -1},
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
        needs_of={"late": late_needs},
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
