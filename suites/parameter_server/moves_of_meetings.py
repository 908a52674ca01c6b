"""The moves of ``parameter-server`` in which reports meet each other, or the round before.

The line decides at which point they meet: this depends neither on chance nor on time.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from everyrank.suites.compare.comparison import check
from everyrank.suites.moves.move import move, only_if
from everyrank.suites.parameter_server.arena import Part, copied
from everyrank.suites.parameter_server.moves_of_updates import UpdateMoves
from everyrank.suites.parameter_server.outline import Outline
from everyrank.suites.parameter_server.reports import PATIENCE, Report
from everyrank.suites.parameter_server.stopping import Stop

#: How many lines of a server a report runs through, and how many of its update: beyond them no report stops.
_LINES, _LINES_OF_UPDATE = 48, 24


def _open(outline: Outline) -> Sequence[str]:
    # These need a time at which each report comes, so the round must stay open.
    return only_if(not outline.model.expires)


def _met(outline: Outline, first: int, second: int, line: int = 0) -> None:
    outline.report([first, second])


def _overlapped(outline: Outline, last: int, late: int, line: int = 0) -> None:
    outline.report(outline.absent)
    outline.report([late])


def _answered(outline: Outline, trainer: int, last: bool = False) -> None:
    outline.report(outline.absent)
    outline.report([trainer])


def _near(number: int) -> Any:
    return lambda outline: outline.near_absent[number] if outline.near_absent[1:] else None


def _last(outline: Outline) -> int | None:
    return next(reversed(outline.near_absent), None)


def _late(outline: Outline) -> int | None:
    """Return the trainer that reports for the next round, beside the one that fills this one."""
    return next((trainer for trainer in outline.near if trainer not in outline.near_absent[-1:]), None)


class MeetingMoves(UpdateMoves):
    """What happens at the same time, on the server's side: the reference does one round after the other."""

    @move(
        "lost-update",
        needs=lambda outline: ["reports that meet", *_open(outline)],
        needs_of={
            "first": lambda outline, first: only_if(first in outline.near_absent),
            "second": lambda outline, first, second: only_if(second in outline.near_absent and second != first),
        },
        drawn={
            "first": lambda outline: outline.near_absent,
            "second": lambda outline: outline.near_absent,
            "line": tuple(range(_LINES + 1)),
        },
        then=_met,
        kinds=tuple({"first": _near(0), "second": _near(-1), "line": line} for line in (6, 16)),
        often=4,
        writes=("gradient", "round", "answer", "parameter", "optimizer state", "step count"),
        reads=("gradient", "round", "answer", "parameter", "optimizer state", "step count"),
    )
    def meet(self, first: int, second: int, line: int = 0) -> None:
        """Stop a report at a line of the server, until another has been made or waits for a lock."""
        sides, stop = self.sides, Stop(line)

        def beside(trainer: int, part: Part) -> Report:
            report = sides.served.beside(trainer, part)
            stop.go_on.set()
            sides.served.taken(sides.waiting[first])
            return sides.served.taken(report)

        try:
            sides.report(first, sides.gradients.part(), partial(sides.stopped, stop))
            sides.report(second, sides.gradients.part(), beside)
        finally:
            stop.go_on.set()

    @move(
        "overlap",
        needs=lambda outline: ["reports during updates", *_open(outline)],
        needs_of={
            "last": lambda outline, last: only_if(last in outline.near_absent),
            "late": lambda outline, last, late: only_if(late in outline.near and late != last),
        },
        then=_overlapped,
        drawn={
            "last": lambda outline: outline.near_absent,
            "late": lambda outline: outline.near,
            "line": (0,) * _LINES_OF_UPDATE + tuple(range(1, _LINES_OF_UPDATE + 1)),
        },
        kinds=tuple({"last": _last, "late": _late, "line": line} for line in (0, 8)),
        often=2,
        writes=("gradient", "round", "answer", "parameter", "optimizer state", "step count"),
        reads=("gradient", "round", "answer", "parameter", "optimizer state", "step count"),
    )
    def overlap(self, last: int, late: int, line: int = 0) -> None:
        """Fill the round, and stop its update at a line of the server, until a trainer has reported for the next one.

        Line 0 is before the optimizer's step. ``last``: the trainer whose report fills the round.
        """
        sides, stop, later = self.sides, Stop(line, in_update=True), self.sides.gradients.part()
        own = copied(later)
        sent: list[tuple[Report, bool]] = []

        def stopped(trainer: int, part: Part) -> Report:
            sides.updates.stop = stop
            try:
                report = sides.stopped(stop, trainer, part)
                # While its round is under way it may be refused; once its trainer has been answered, no longer.
                refusable = not sides.waiting[late].answered.is_set()
                sent.append((sides.served.beside(late, own), refusable))
            finally:
                sides.updates.stop = None
                stop.go_on.set()
            return report

        for trainer in sides.absent:
            if trainer != last:
                sides.report(trainer, sides.gradients.part())
        sides.report(last, sides.gradients.part(), stopped)
        sides.begin_with(*sent[0], later, own)

    @move(
        "overlap",
        # A single trainer would report in the call that it makes itself.
        needs=lambda outline: ["reports during answers", *_open(outline), *only_if(outline.model.trainers[1:])],
        needs_of={"trainer": lambda outline, trainer: only_if(trainer in outline.near_absent)},
        then=_answered,
        drawn={"trainer": lambda outline: outline.near_absent, "last": (False, True)},
        kinds=({"trainer": _last},),
        often=2,
        writes=("gradient", "round", "answer", "parameter", "optimizer state", "step count"),
        reads=("gradient", "round", "answer", "parameter", "optimizer state", "step count"),
    )
    def report_when_answered(self, trainer: int, last: bool = False) -> None:
        """Fill the round, and let a trainer report for the next one in the call that answers it.

        ``last``: it was the last to report, not the first.
        """
        sides, later = self.sides, self.sides.gradients.part()
        own = copied(later)
        sent, ready = list[Report](), threading.Event()

        def again(_: object) -> None:
            sent.append(sides.served.beside(trainer, own))
            ready.set()

        def ask(part: Part) -> Any:
            answer = sides.served.ask(trainer, part)
            if isinstance(answer, torch._C.Future):
                answer.add_done_callback(again)
            else:
                again(answer)
            return answer

        def send(trainer: int, part: Part) -> Report:
            return sides.served.taken(Report(trainer, partial(ask, part), aside=True))

        others = [other for other in sides.absent if other != trainer]
        for other in [*others, trainer] if last else [trainer, *others]:
            sides.report(other, sides.gradients.part(), send if other == trainer else None)
        check(ready.wait(PATIENCE), f"trainer {trainer} did not report again when it was answered")
        sides.begin_with(sent[0], False, later, own)
