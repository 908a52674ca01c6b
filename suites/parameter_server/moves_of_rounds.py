"""The moves of ``parameter-server`` in which a report is refused, or none comes, and what trainers change."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from everyrank.suites.moves.move import NEVER, first_of, move, only_if
from everyrank.suites.parameter_server import wrong_gradients
from everyrank.suites.parameter_server.moves_of_reports import ReportMoves, last_trainer, late_needs, next_trainer
from everyrank.suites.parameter_server.outline import Outline

#: After how many refused reports defects come again.
_TURNS = 6


def _refusing_needs(outline: Outline, defect: str, param: int) -> Iterator[str]:
    yield f"refuses {defect}"
    if defect not in wrong_gradients.ALL:
        yield from only_if(outline.model.wrong_by(defect)[param:][:1])
    if wrong_gradients.PATTERNS[defect] is wrong_gradients.FINITE:
        yield from only_if(outline.model.non_finite is False)


def _able(outline: Outline) -> Sequence[str]:
    """Return the defects that a report may have: those of lists as often as all others."""
    able = [name for name in (*wrong_gradients.ONE, *wrong_gradients.SPARSE) if outline.model.wrong_by(name)]
    if outline.model.non_finite is not False:
        able = [name for name in able if wrong_gradients.PATTERNS[name] is not wrong_gradients.FINITE]
    return [*able, *wrong_gradients.ALL, *wrong_gradients.ALL]


def _chosen(pattern: str, outline: Outline) -> tuple[str, int] | None:
    """Return a defect with this pattern, and which of the parameters that can have it does.

    Each parameter comes in turn, with each of its defects.
    """
    kinds = (*wrong_gradients.ONE, *wrong_gradients.SPARSE)
    by_defect = {name: outline.model.wrong_by(name) for name in kinds if wrong_gradients.PATTERNS[name] is pattern}
    params = sorted(set().union(*by_defect.values()))
    if not params:
        return None
    turn = zlib.crc32(repr(outline.model).encode()) + outline.refused
    param = params[turn % len(params)]
    able = [name for name, wrong in by_defect.items() if param in wrong]
    defect = able[turn // len(params) % len(able)]
    return defect, by_defect[defect].index(param)


def _any_with(pattern: str) -> dict[str, Any]:
    """Return what chooses a defect with this pattern, and its parameter, as two arguments."""

    def part(number: int) -> Callable[[Outline], Any]:
        return lambda outline: (_chosen(pattern, outline) or (None, None))[number]

    return {"defect": part(0), "param": part(1)}


def _refused(outline: Outline, **given: Any) -> None:
    outline.refused = (outline.refused + 1) % _TURNS


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
        then=_refused,
        drawn={
            "trainer": lambda outline: outline.absent,
            "defect": _able,
            "param": (0, 1, 2, -1),
        },
        kinds=(
            {"trainer": next_trainer, **_any_with(wrong_gradients.SHAPE)},
            {"trainer": last_trainer, **_any_with(wrong_gradients.DTYPE)},
            {"trainer": last_trainer, "defect": "count-fewer"},
            {"trainer": next_trainer, **_any_with(wrong_gradients.FINITE)},
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
