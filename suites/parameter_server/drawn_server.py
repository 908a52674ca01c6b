"""The server of a draw beside the reference, and the reports and answers of its trainers."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed.rpc as rpc
from everyrank.fixtures.optimizers import row
from everyrank.suites.arena.subject_errors import subject_acts
from everyrank.suites.compare.comparison import EXACT, Comparison, check, same
from everyrank.suites.engine.subject import Subject
from everyrank.suites.errors import Deviation
from everyrank.suites.generate.player import DrawnObjects, reference_acts
from everyrank.suites.parameter_server import grammar as g
from everyrank.suites.parameter_server import wrong_gradients
from everyrank.suites.parameter_server.arena import Arena, Gradient, Served, exact
from everyrank.suites.parameter_server.drawn_model import make
from everyrank.suites.parameter_server.laws.errors import SHORT
from everyrank.suites.parameter_server.locks import Locks
from everyrank.suites.parameter_server.points import ServerPoint
from everyrank.suites.parameter_server.reports import GRACE, PATIENCE, Report, parameters, plain, settle
from everyrank.suites.parameter_server.stopping import Updates

#: How long, in seconds, to wait for a report that may wait for a lock which the kit does not see. The expected values
#: are the same whether that report arrives in this time or later.
_UNSEEN = 1.0
#: How many of the answers that trainers keep are compared again.
_KEPT = 8

Part = list[Gradient]
Values = dict[str, torch.Tensor]


class DrawnServer(DrawnObjects):
    """The server of one draw, the reference, and the trainers."""

    def __init__(self, subject: Subject, draw: g.Draw) -> None:
        self.subject, self.draw = subject, draw
        self.updates = Updates()
        self._made = 0  # how often new gradients were made
        self._kept: list[tuple[str, list[torch.Tensor], list[torch.Tensor]]] = []
        twin, self._numbers = make(draw)
        self._index = {number: index for index, number in enumerate(self._numbers)}
        with reference_acts():
            self._optimizer(twin.parameters())
        with subject_acts():
            server = subject.build(make(draw)[0], len(draw.trainers), self._optimizer, **self._options())
        # The arena did not build it: its copies of a model have neither gaps nor shared storage.
        far = set(draw.trainers) != {None}
        arena = Arena(subject, ServerPoint("generated", draw.size, trainers=len(draw.trainers), far=far))
        self.served = Served(arena, server, len(draw.trainers), twin, self._optimizer)
        self._locks = Locks(server)

    def _options(self) -> dict[str, Any]:
        options: dict[str, Any] = {"timeout": SHORT} if self.draw.expires else {}
        rounds = [action for action in self.draw.actions if isinstance(action, g.Round)]
        asked = any(wrong.defect in wrong_gradients.NOT_FINITE for action in rounds for wrong in action.wrong)
        return options | ({"non_finite": self.draw.non_finite} if self.draw.non_finite or asked else {})

    def _optimizer(self, given: Any) -> torch.optim.Optimizer:
        found = row(self.draw.optimizer)
        built = found.build(given, found.variant(self.draw.variant))
        if any(isinstance(action, g.Overlap) for action in self.draw.actions):
            built.register_step_pre_hook(self.updates.begin)
        return built

    # --- gradients -----------------------------------------------------------------------------------

    def parts(self, missing: Sequence[tuple[int, int]] = (), large: bool = False) -> list[Part]:
        """Return new gradients for each trainer, in the model's order."""
        parts = []
        for _ in self.draw.trainers:
            self._made += 1
            generator = torch.Generator().manual_seed(self._made)
            part = [self._gradient(number, generator) for number in self._numbers]
            parts.append([None if grad is None else grad * 1024 for grad in part] if large else part)
        for trainer, number in missing:
            parts[trainer][self._index[number]] = None
        return parts

    def _gradient(self, number: int, generator: torch.Generator) -> Gradient:
        like = self.served.twins[self._index[number]]
        return exact(like, generator, self.draw.params[number].sparse) if like.requires_grad else None

    def changed(self, part: Part, wrong: g.Wrong) -> Part:
        """Return the part with one wrong gradient, or as a wrong list."""
        if wrong.defect in wrong_gradients.ALL:
            return wrong_gradients.ALL[wrong.defect][0](part)
        index = self._index[wrong.param]
        right = part[index]
        if right is None:
            right = torch.ones_like(self.served.twins[index])
        return [*part[:index], wrong_gradients.ONE[wrong.defect][0](right), *part[index + 1 :]]

    def apply(self, parts: Sequence[Part]) -> Values:
        """Step the reference by a round, before the server gets it. Return the parameters that are due."""
        with reference_acts():
            self.served.applied(parts)
        return {name: value.detach().clone() for name, value in self.served.expected().items()}

    # --- reports -------------------------------------------------------------------------------------

    def report(self, trainer: int, part: Part) -> Report:
        """Report, and return when the server has the report."""
        taken = None
        if self.draw.trainers[trainer] is not None:
            self.served.door.awaits(trainer, taken := threading.Event())
        # On its own thread, since a call may never return.
        return self.until_taken(Report(trainer, partial(self.ask, trainer, part), aside=True, taken=taken))

    def until_taken(self, report: Report) -> Report:
        if not report.accepted.wait(GRACE if self.served.blocks else PATIENCE) and not self.served.blocks:
            raise Deviation(f"the report of trainer {report.trainer} was not taken within {PATIENCE:g} s")
        return report

    def ask(self, trainer: int, part: Part) -> Any:
        """Call the server as this trainer does. In one process, the server gets the trainer's own tensors."""
        worker = self.draw.trainers[trainer]
        if worker is None:
            return self.served.server.update_and_fetch(part, trainer)
        assert self.served.far is not None
        if worker == 0:
            return self.served.far.rpc_async().update_and_fetch(part, trainer)
        return rpc.rpc_async(f"worker{worker}", relay, args=(self.served.far, part, trainer))

    def beside(self, trainer: int, part: Part) -> Report:
        """Report, and return when the call has returned, or when it waits for a lock of the server."""
        arrived = threading.Event()
        ask = partial(self.ask, trainer, copied(part))
        report = Report(trainer, lambda: self._locks.calling(ask, arrived), aside=True)
        arrived.wait(GRACE if self.served.blocks else _UNSEEN)
        return report

    # --- answers -------------------------------------------------------------------------------------

    def none_answered(self, reports: Sequence[Report]) -> None:
        """Check that no trainer gets a model before the round is full."""
        for report in reports:
            check(
                not report.answered.is_set() or (self.draw.expires and report.error is not None),
                f"trainer {report.trainer} was answered when {len(reports)} of {self.served.trainers} had reported",
            )

    def answered(self, reports: Sequence[Report], expected: Values) -> None:
        """Check that all reports are answered, with these parameters."""
        settle(reports)
        for report in sorted(reports, key=lambda report: report.trainer):
            self.compare_answer(report, expected)
            self.keep(report)

    def compare_answer(self, report: Report, expected: Values) -> None:
        """Compare one answer, bit for bit: the same kernels run on the same values."""
        values = parameters(report.answer(), report.trainer)
        if len(values) != len(expected):
            raise Deviation(f"trainer {report.trainer} was answered with {len(values)} parameters of {len(expected)}")
        comparison = Comparison(EXACT, self.subject.bound)
        comparison.step(0, dict(zip(expected, values, strict=True)), expected)
        comparison.raise_first(f"trainer {report.trainer}: ")

    def keep(self, report: Report) -> None:
        """Note the values of an answer, if trainers keep theirs."""
        if self.draw.keeps:
            values = parameters(report.answer(), report.trainer)
            label = f"the answer of trainer {report.trainer} in round {self.served.rounds}"
            self._kept = [*self._kept, (label, values, [value.detach().clone() for value in values])][-_KEPT:]

    def compare(self) -> None:
        """Check that the answers that were kept still have their values."""
        for label, values, before in self._kept:
            for now, then in zip(values, before, strict=True):
                same(now.detach(), then, f"{label}, looked at again")


def copied(part: Part) -> Part:
    return [None if grad is None else grad.clone() for grad in part]


@rpc.functions.async_execution  # type: ignore[untyped-decorator]
def relay(server: Any, part: Part, trainer: int) -> Any:
    """Report to the server from a trainer's worker. No thread of the worker waits for the answer."""
    return server.rpc_async().update_and_fetch(part, trainer).then(lambda answer: plain(answer.value()))
