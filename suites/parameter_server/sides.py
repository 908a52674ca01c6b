"""Both sides of a script of ``parameter-server``: the server with its trainers, and the reference beside it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import torch
from everyrank.model.counts import count
from everyrank.suites.arena.subject_errors import in_a_line, subject_acts
from everyrank.suites.compare.comparison import EXACT, Comparison, Tolerance, check, same
from everyrank.suites.engine.subject import Subject
from everyrank.suites.errors import Deviation
from everyrank.suites.moves.together import reference_acts
from everyrank.suites.parameter_server import wrong_gradients
from everyrank.suites.parameter_server.arena import Part, Served, copied
from everyrank.suites.parameter_server.gradients import Gradients
from everyrank.suites.parameter_server.model import Model
from everyrank.suites.parameter_server.reports import PATIENCE, Report, parameters, pass_on, settle
from everyrank.suites.parameter_server.stopping import Stop, Updates

#: How long the error of a round that has expired may take, in seconds.
BOUND = 3.0
#: The share of its time limit for which a round stays open at least, whatever the resolution of a server's clock.
_OPEN_FOR = 0.9
#: How often a full round is tried, if it may expire: on a busy machine it may not be full in time.
_ATTEMPTS = 10

#: The parts of a sparse gradient may be added to a parameter one by one, or as their sum. A server that sums them is
#: off by up to 1.9 ULPs in the crossings, and by up to 10 after eight rounds of four trainers with momentum.
_ROUNDED = Tolerance(ulps=16)

#: How many of the answers that trainers keep are compared again.
_KEPT = 8

Values = dict[str, torch.Tensor]
Send = Callable[[int, Part], Report]


class Sides:
    """The server of one model, the reference, the trainers, and the reports of the round that is open."""

    scripted = True
    """Whether a script is played, of which the reports may never be answered."""
    gradients_of = Gradients

    def __init__(self, subject: Subject, model: Model) -> None:
        self.subject, self.model = subject, model
        self.updates = Updates()
        self.parts: dict[int, Part] = {}
        """The gradients that trainers have reported in the open round."""
        self.waiting: dict[int, Report] = {}
        """The reports of the open round."""
        self.own: dict[int, Part] = {}
        """Each trainer's tensors, which it has reported last."""
        self.answers: dict[int, Report] = {}
        """The answers of the last round."""
        self._kept: dict[tuple[int, int], tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
        """The answers that trainers keep, by round and trainer, each with a copy of it."""
        (ours, self._numbers), (twin, _) = model.make(), model.make()
        self.updates.modules = ours, twin
        with reference_acts():
            self._optimizer(twin.parameters())
        with subject_acts():
            self.served = Served(subject, ours, twin, self._optimizer, model.trainers, model.options)
        self.gradients = self.gradients_of(model, self._numbers, self.served.twins)
        if self.scripted:
            self.served.relay = pass_on
            self.served.aside = True  # a call that never returns is a deviation, and the script is made short

    def _optimizer(self, given: Any) -> torch.optim.Optimizer:
        built = self.model.make_optimizer(given)
        built.register_step_pre_hook(self.updates.begin)
        self.updates.watch(built)
        return built

    @property
    def absent(self) -> list[int]:
        return [trainer for trainer in range(self.served.trainers) if trainer not in self.waiting]

    # --- reports -------------------------------------------------------------------------------------

    def report(self, trainer: int, part: Part, send: Send | None = None, own: Part | None = None) -> None:
        """Let a trainer report. If that fills the round, do it in the reference, and compare all answers.

        ``own``: its tensors, with the values of the part.
        """
        self.parts[trainer], self.own[trainer] = part, own or copied(part)
        full = self.absent == [trainer]
        expected = self.apply() if full else {}
        self.waiting[trainer] = (send or self.send)(trainer, self.own[trainer])
        if full:
            self._answered(expected)

    def report_again(self) -> None:
        """Let all trainers that wait for their answers report again what they have reported: it counts once."""
        for trainer, report in self.waiting.items():
            again = copied(self.parts[trainer])
            self.own[trainer] = [*self.own[trainer], *again]
            self.served.send_again(report, again)
        self.none_answered()

    def send(self, trainer: int, part: Part) -> Report:
        return self.served.report(trainer, part)

    def apply(self) -> Values:
        """Step the reference by the open round, before the server does. Return the parameters that are due."""
        with reference_acts():
            self.served.applied([self.parts[trainer] for trainer in sorted(self.parts)])
        return {name: value.detach().clone() for name, value in self.served.expected().items()}

    def refused(self, report: Report, defect: str) -> None:
        """Check that a wrong report is refused, with an error that says what is wrong."""
        line = in_a_line(report.refusal())
        check(
            re.search(wrong_gradients.PATTERNS[defect], line.lower()) is not None,
            f"the error does not say what is wrong: {line}",
        )

    def expired(self) -> None:
        """Wait until the open round has ended with an error for all of its trainers."""
        for report in self.waiting.values():
            report.refusal(BOUND)
        self._none_refused_early()
        self.begin()

    def let_time_pass(self) -> None:
        """Return when half of the time limit of a round has passed: then a round of another server expires."""
        (ours, _), (twin, _) = self.model.make(), self.model.make()
        options = {**self.model.options, "timeout": self.model.options["timeout"] / 2}
        with subject_acts("a second server of the process"):
            served = Served(self.subject, ours, twin, self.model.make_optimizer, (None, None), options)
            served.report(0, self.gradients.part()).refusal(BOUND)

    def begin(self) -> None:
        """Begin a round."""
        self.waiting, self.parts = {}, {}

    def _answered(self, expected: Values) -> None:
        """Check that all reports of the round are answered, with these parameters."""
        self._repeated()
        settle(list(self.waiting.values()))
        for trainer, report in sorted(self.waiting.items()):
            self.compare_answer(report, expected)
            _compare_buffers(report, self.served.twin)
            if self.model.keeps:
                values = parameters(report.answer(), trainer)
                self._kept[self.served.rounds, trainer] = values, [value.detach().clone() for value in values]
        self._kept = dict(list(self._kept.items())[-_KEPT:])
        self.answers = self.waiting
        self.begin()

    def _repeated(self) -> None:
        """Let all trainers report again if a busy machine makes a round that may expire too late for its reports."""
        for _ in range(_ATTEMPTS if self.model.expires else 0):
            for report in self.waiting.values():
                report.due(BOUND)
            self._none_refused_early()
            if any(report.error is None for report in self.waiting.values()):
                break
            for trainer in self.waiting:
                self.own[trainer] = copied(self.parts[trainer])
                self.waiting[trainer] = self.send(trainer, self.own[trainer])

    # --- reports that meet others ----------------------------------------------------------------------

    def stopped(self, stop: Stop, trainer: int, part: Part) -> Report:
        """Report, and return when the report has stopped within the server, or never will."""
        ask = partial(self.served.ask, trainer, part)
        report = Report(trainer, lambda: stop.calling(ask), aside=True)
        if not stop.reached.wait(4 * PATIENCE) and not self.served.blocks:
            raise report.unanswered(4 * PATIENCE)
        return report

    def begin_with(self, report: Report, refusable: bool, part: Part, own: Part) -> None:
        """Begin the round of which one report came while the round before was under way."""
        trainer = self.served.taken(report).trainer
        if report.error is None:
            self.parts[trainer], self.own[trainer], self.waiting[trainer] = part, own, report
        elif refusable:
            self.report(trainer, part)
        else:
            report.answer()  # raises

    # --- answers -------------------------------------------------------------------------------------

    def compare_answer(self, report: Report, expected: Values) -> None:
        """Compare one answer: bit for bit where gradients are dense, as the same kernels run on the same values."""
        found = self.named(report, expected)
        sparse = {
            name for name, number in zip(expected, self._numbers, strict=True) if self.model.params[number].sparse
        }
        for tolerance, names in ((EXACT, expected.keys() - sparse), (_ROUNDED, sparse)):
            comparison = Comparison(tolerance, self.subject.bound)
            comparison.step(0, _only(names, found), _only(names, expected))
            comparison.raise_first(f"trainer {report.trainer}: ")

    def named(self, report: Report, expected: Values) -> Values:
        """Return the parameters in an answer by their names."""
        values = report.values()
        if len(values) != len(expected):
            raise Deviation(
                f"trainer {report.trainer} was answered with {count(len(values), 'parameter')} of {len(expected)}"
            )
        return dict(zip(expected, values, strict=True))

    def overwrite_answer(self, trainer: int) -> None:
        spoil(parameters(self.answers[trainer].answer(), trainer))
        self._kept.pop((self.served.rounds, trainer), None)

    def overwrite_gradients(self, trainer: int) -> None:
        if trainer not in self.waiting or not self.served.blocks:  # nobody knows when a server that blocks has them
            spoil(self.own[trainer])

    def compare(self) -> None:
        """Check that no trainer is answered before its round is full, and that answers which were kept stay."""
        self.none_answered()
        for (number, trainer), (values, before) in self._kept.items():
            for now, then in zip(values, before, strict=True):
                same(now.detach(), then, f"the answer of trainer {trainer} in round {number}, looked at again")

    def none_answered(self) -> None:
        """Check that no trainer of the open round is answered."""
        for trainer, report in self.waiting.items():
            check(
                not report.answered.is_set() or (self.model.expires and report.error is not None),
                f"trainer {trainer} was answered when {len(self.waiting)} of {self.served.trainers} had reported",
            )
        self._none_refused_early()

    def _none_refused_early(self) -> None:
        """Check that the open round, if it may expire, has not ended before its time limit."""
        limit = self.model.options.get("timeout", 0.0)
        began = min((report.began for report in self.waiting.values()), default=0.0)
        for trainer, report in self.waiting.items():
            lasted = report.ended - began
            if report.error is not None and lasted < limit * _OPEN_FOR:
                text = f"{lasted:.2f} s after the first report of a round that may stay open for {limit:g} s"
                raise Deviation(f"trainer {trainer} was refused {text}: {in_a_line(report.error)}")


def _compare_buffers(report: Report, twin: torch.nn.Module) -> None:
    """Compare the buffers in an answer that is a module."""
    answer = report.answer()
    if not isinstance(answer, torch.nn.Module):
        return
    found = dict(answer.named_buffers())
    for name, due in twin.named_buffers():
        label = f"the buffer {name} in the answer of trainer {report.trainer}"
        check(name in found, f"{label} is missing")
        same(found[name], due, label)


def spoil(tensors: Sequence[torch.Tensor | None]) -> None:
    """Overwrite the tensors of a trainer: of a sparse one the values, and the rows that they belong to."""
    with torch.no_grad():
        for tensor in tensors:
            if tensor is not None:
                (tensor._values() if tensor.is_sparse else _written_once(tensor)).fill_(1000.0)
                if tensor.is_sparse:
                    tensor._indices()[0].add_(1).remainder_(tensor.shape[0])


def _written_once(tensor: torch.Tensor) -> torch.Tensor:
    """Return what each element of an expanded tensor stands for; torch refuses to write one number several times."""
    for dim, stride in enumerate(tensor.stride()):
        tensor = tensor.narrow(dim, 0, 1) if not stride and tensor.shape[dim] > 1 else tensor
    return tensor


def _only(names: Collection[str], values: Values) -> Values:
    return {name: value for name, value in values.items() if name in names}
