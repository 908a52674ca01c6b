"""Carry out a draw of ``parameter-server``: each round by the server, and by torch.optim on the mean gradient."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from everyrank.suites.arena.subject_errors import in_a_line
from everyrank.suites.compare.comparison import check
from everyrank.suites.engine.subject import Subject
from everyrank.suites.generate.player import Player
from everyrank.suites.parameter_server import grammar as g
from everyrank.suites.parameter_server import wrong_gradients
from everyrank.suites.parameter_server.drawn_server import DrawnServer, Part, Values, copied
from everyrank.suites.parameter_server.laws.errors import ATTEMPTS, BOUND, spoil
from everyrank.suites.parameter_server.reports import PATIENCE, Report, parameters, settle
from everyrank.suites.parameter_server.stopping import Stop


class ServerPlayer(Player[g.Draw, DrawnServer]):
    """What each action of a draw does. On the server's rank only."""

    def __init__(self, subject: Subject, draw: g.Draw) -> None:
        super().__init__(draw, DrawnServer(subject, draw))
        self.server = self.objects

    # --- rounds --------------------------------------------------------------------------------------

    def _round(self, action: g.Round) -> None:
        server = self.server
        for time in range(action.times):
            parts = server.parts(action.missing, action.large)
            for value in action.taken:
                parts[value.trainer] = server.changed(parts[value.trainer], value)
            expected = server.apply(parts)
            own = [copied(part) for part in parts]
            reports = self._full(action, own, () if time else action.wrong)
            settle(reports)
            if action.spoils == "gradients":
                spoil(own[action.spoiler])
            if action.spoils == "answer":
                (mine,) = (report for report in reports if report.trainer == action.spoiler)
                server.compare_answer(mine, expected)
                spoil(parameters(mine.answer(), mine.trainer))
                server.keep(mine)
                reports.remove(mine)
            server.answered(reports, expected)

    def _full(self, action: g.Round, own: Sequence[Part], wrong: Sequence[g.Wrong]) -> list[Report]:
        """Let all trainers report, again if a busy machine makes a round that may expire too late for its reports."""
        reports = self._all(action, own, wrong)
        for _ in range(ATTEMPTS if self.draw.expires else 0):
            for report in reports:
                report.due(BOUND)
            if any(report.error is None for report in reports):
                break
            reports = self._all(action, own, ())
        return reports

    def _all(self, action: g.Round, own: Sequence[Part], wrong: Sequence[g.Wrong]) -> list[Report]:
        server, reports = self.server, list[Report]()
        for position, trainer in enumerate(action.order):
            for report in wrong:
                if report.before == position:
                    self._refused(report, copied(own[report.trainer]))
            server.none_answered(reports)
            reports.append(server.report(trainer, own[trainer]))
            # Nobody knows when a server that blocks has taken the gradients.
            if action.spoils == "reported" and trainer == action.spoiler and not server.served.blocks:
                spoil(own[trainer])
        return reports

    def _refused(self, wrong: g.Wrong, part: Part) -> None:
        error = self.server.report(wrong.trainer, self.server.changed(part, wrong)).refusal()
        line = in_a_line(error)
        _, pattern = {**wrong_gradients.ONE, **wrong_gradients.ALL}[wrong.defect]
        check(re.search(pattern, line.lower()) is not None, f"the error does not say what is wrong: {line}")

    def _expire(self, action: g.Expire) -> None:
        parts = self.server.parts()
        for report in [self.server.report(trainer, parts[trainer]) for trainer in action.reporters]:
            report.refusal(BOUND)

    # --- reports that meet ---------------------------------------------------------------------------

    def _meet(self, action: g.Meet) -> None:
        server, stop = self.server, Stop(action.line)
        parts = server.parts()
        expected = server.apply(parts)
        before, (first, second), after = split(action.order, action.first)
        reports = [server.report(trainer, parts[trainer]) for trainer in before]
        stopped = self._stopped(first, parts[first], stop)
        try:
            reports += [stopped, server.beside(second, parts[second])]
        finally:
            stop.go_on.set()
        for report in reports[-2:]:
            server.until_taken(report)
        reports += [server.report(trainer, parts[trainer]) for trainer in after]
        server.answered(reports, expected)

    def _overlap(self, action: g.Overlap) -> None:
        server, stop = self.server, Stop(action.line, in_update=True)
        parts, later = server.parts(), server.parts()
        expected, due = server.apply(parts), server.apply(later)
        *early, last = action.order
        reports = [server.report(trainer, parts[trainer]) for trainer in early]
        server.none_answered(reports)
        server.updates.stop = stop
        stopped = self._stopped(last, parts[last], stop)
        try:
            (before,) = (report for report in reports if report.trainer == action.late)
            # While its round is under way it may be refused; once its trainer has been answered, no longer.
            refusable = not before.answered.is_set()
            late = server.beside(action.late, later[action.late])
        finally:
            server.updates.stop = None
            stop.go_on.set()
        server.answered([*reports, stopped], expected)
        self._next(action.order, late, later, due, refusable)

    def _stopped(self, trainer: int, part: Part, stop: Stop) -> Report:
        """Report, and return when the report has stopped within the server, or never will."""
        ask = partial(self.server.ask, trainer, copied(part))
        report = Report(trainer, lambda: stop.calling(ask), aside=True)
        if not stop.reached.wait(PATIENCE) and not self.server.served.blocks:
            raise report.unanswered(PATIENCE)
        return report

    def _atonce(self, action: g.AtOnce) -> None:
        server = self.server
        parts, later = server.parts(), server.parts()
        expected, due = server.apply(parts), server.apply(later)
        sent: list[Report] = []
        ready = threading.Event()

        def again(_: object) -> None:
            sent.append(server.beside(action.late, later[action.late]))
            ready.set()

        def ask() -> Any:
            answer = server.ask(action.late, copied(parts[action.late]))
            if isinstance(answer, torch._C.Future):
                answer.add_done_callback(again)
            else:
                again(answer)
            return answer

        reports = []
        for trainer in action.order:
            if trainer == action.late:
                reports.append(server.until_taken(Report(trainer, ask, aside=True)))
            else:
                reports.append(server.report(trainer, parts[trainer]))
        server.answered(reports, expected)
        check(ready.wait(PATIENCE), f"trainer {action.late} did not report again when it was answered")
        self._next(action.order, sent[0], later, due, refusable=False)

    def _next(self, order: Sequence[int], late: Report, parts: Sequence[Part], due: Values, refusable: bool) -> None:
        """Finish the round of which one report came while the round before was under way."""
        server = self.server
        reports = [server.report(trainer, parts[trainer]) for trainer in order if trainer != late.trainer]
        check(
            late.answered.wait(PATIENCE),
            f"the report of trainer {late.trainer}, which came while the round before was under way, was lost",
        )
        again = refusable and late.error is not None
        reports.append(server.report(late.trainer, parts[late.trainer]) if again else late)
        server.answered(reports, due)


def split(order: Sequence[int], first: int) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
    """Return the trainers before a pair, the pair, and the trainers after it."""
    return order[:first], order[first : first + 2], order[first + 2 :]
