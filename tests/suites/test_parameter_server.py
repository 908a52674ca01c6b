"""What the contract ``parameter-server`` takes for a server, and that the example it runs is torch's."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import pytest
import torch
from everyrank.fixtures.exemplars.parameter_server import BatchUpdateParameterServer
from everyrank.fixtures.rogues.parameter_server import KnowsItsUpdates
from everyrank.suites.engine.contract import Law, Point, contract
from everyrank.suites.engine.subject import Subject
from everyrank.suites.errors import BrokenAdapter, Deviation
from everyrank.suites.parameter_server import example
from everyrank.suites.parameter_server.arena import Arena
from everyrank.suites.parameter_server.locks import WatchedLock


class Blocking(BatchUpdateParameterServer):
    """Returns the model itself, when it is there."""

    declares = frozenset({"blocks"})

    def update_and_fetch(self, gradients: Any, trainer: int) -> Any:
        return super().update_and_fetch(gradients, trainer).wait()


class Listing(BatchUpdateParameterServer):
    """Answers with the parameters alone."""

    declares: frozenset[str] = frozenset()

    def update_and_fetch(self, gradients: Any, trainer: int) -> Any:
        answer = super().update_and_fetch(gradients, trainer)
        return answer.then(lambda done: list(done.value().parameters()))


def _near() -> list[tuple[Law, Point]]:
    """One core point of each law, with the trainers in this process."""
    found = [
        (law, point) for law, point in contract("parameter-server").points((1,)) if point.core and not law.crosses
    ]
    # At these, a server that blocks is not checked.
    left_out = {"alias": "gradients-n2", "overlap": "answered-n2"}
    return list({law.id: (law, point) for law, point in found if left_out.get(law.id) != point.label}.values())


@pytest.mark.parametrize("kind", [Blocking, Listing])
@pytest.mark.parametrize(("law", "point"), _near(), ids=lambda value: getattr(value, "id", ""))
def test_a_server_may_block_or_answer_with_parameters(kind: Any, law: Law, point: Point) -> None:
    subject = Subject("mine", contract="parameter-server", build=kind, declares=kind.declares)
    law.check(Arena(subject, point), point)


def test_a_server_that_blocks_without_declaring_it_is_asked_to_declare_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everyrank.suites.parameter_server.arena.PATIENCE", 0.1)
    law, point = next((law, point) for law, point in _near() if law.id == "wait")
    with pytest.raises(BrokenAdapter, match="or the subject declares that it `blocks`"):
        law.check(Arena(Subject("mine", contract="parameter-server", build=Blocking), point), point)


class LocksFirst(BatchUpdateParameterServer):
    """Lets nobody in during an update, before it has looked at a report."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lock = contextlib.nullcontext()
        self.turn = threading.Condition()

    def update_and_fetch(self, gradients: Any, trainer: int) -> Any:
        with self.turn:
            return super().update_and_fetch(gradients, trainer)


class RefusesDuringUpdates(KnowsItsUpdates):
    def update_and_fetch(self, gradients: Any, trainer: int) -> Any:
        if self.updating:
            raise RuntimeError("an update is under way")
        return super().update_and_fetch(gradients, trainer)


class RefusesDuringUpdatesLater(KnowsItsUpdates):
    def update_and_fetch(self, gradients: Any, trainer: int) -> Any:
        refused = self.updating
        answer = super().update_and_fetch(gradients, trainer) if not refused else torch.futures.Future()
        if refused:
            answer.set_exception(RuntimeError("an update is under way"))
        return answer


@pytest.mark.parametrize("kind", [LocksFirst, RefusesDuringUpdates, RefusesDuringUpdatesLater])
@pytest.mark.parametrize("label", ["updated-n3", "answered-n3"])
def test_a_report_during_an_update_may_be_kept_out_or_refused(kind: Any, label: str) -> None:
    law = contract("parameter-server").laws["overlap"]
    point = next(point for point in law.points() if point.label == label)
    law.check(Arena(Subject("mine", contract="parameter-server", build=kind), point), point)


class Replaces(BatchUpdateParameterServer):
    """Puts a report in the place of that which its trainer has made before: that call gets an error."""

    def update_and_fetch(self, gradients: Any, trainer: int) -> Any:
        self.round.reports.pop(trainer, None)
        before = self.round.answers.pop(trainer, None)
        if before is not None:
            before.set_exception(RuntimeError(f"trainer {trainer} has reported again"))
        return super().update_and_fetch(gradients, trainer)


class AnswersBoth(BatchUpdateParameterServer):
    """Answers a trainer that reports again as its first call."""

    def update_and_fetch(self, gradients: Any, trainer: int) -> Any:
        answer = self.round.answers.get(trainer)
        return answer.then(lambda done: done.value()) if answer else super().update_and_fetch(gradients, trainer)


class ForgetsTheFirstCall(BatchUpdateParameterServer):
    """Answers the last call of a trainer alone."""

    def update_and_fetch(self, gradients: Any, trainer: int) -> Any:
        for each in (self.round.reports, self.round.answers):
            each.pop(trainer, None)
        return super().update_and_fetch(gradients, trainer)


def _let_them_report_again(kind: Any) -> None:
    law = contract("parameter-server").laws["wait"]
    point = next(point for point in law.points() if point.label == "again-n3")
    law.check(Arena(Subject("mine", contract="parameter-server", build=kind), point), point)


@pytest.mark.parametrize("kind", [BatchUpdateParameterServer, Replaces, AnswersBoth])
def test_a_trainer_that_reports_again_is_answered_in_one_of_its_calls(kind: Any) -> None:
    _let_them_report_again(kind)


def test_a_trainer_that_reports_again_waits_for_no_call_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everyrank.suites.parameter_server.reports.PATIENCE", 0.1)
    with pytest.raises(Deviation, match="trainer 0 was not answered in one of its calls within"):
        _let_them_report_again(ForgetsTheFirstCall)


def test_a_lock_names_the_trainer_that_waits_for_it_and_no_other() -> None:
    waits: list[bool] = []
    lock = WatchedLock(threading.RLock(), lambda: waits.append(True))
    with lock, lock:
        assert not waits
        other = threading.Thread(target=lambda: lock.acquire(timeout=0))
        other.start()
        other.join()
    assert waits == [True]
    assert lock.acquire(blocking=False)


class TakesNonFiniteUnasked(BatchUpdateParameterServer):
    def __init__(self, *args: Any, non_finite: bool = True, **kwargs: Any) -> None:
        super().__init__(*args, non_finite=non_finite, **kwargs)


@pytest.mark.parametrize("label", ["nan-n2", "inf-n2", "nan-taken-n2"])
def test_whether_values_that_are_not_finite_are_taken_is_asked_for(label: str) -> None:
    law = contract("parameter-server").laws["errors.gradient"]
    point = next(point for point in law.points() if point.label == label)
    law.check(Arena(Subject("mine", contract="parameter-server", build=TakesNonFiniteUnasked), point), point)


class Stuck(BatchUpdateParameterServer):
    def models(self, full: Any) -> Any:
        return {}


def test_a_trainer_that_is_never_answered_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everyrank.suites.parameter_server.reports.PATIENCE", 0.1)
    law, point = next((law, point) for law, point in _near() if law.id == "parity.round")
    with pytest.raises(Deviation, match=r"trainer 0 was not answered within 0\.1 s"):
        law.check(Arena(Subject("mine", contract="parameter-server", build=Stuck), point), point)


class _Here:
    """What torch's example takes for an RRef."""

    def __init__(self, server: Any) -> None:
        self.server = server

    def local_value(self) -> Any:
        return self.server


def _theirs(module: torch.nn.Module, trainers: int) -> Any:
    from torch.testing._internal.distributed.rpc.examples import parameter_server_test

    server = parameter_server_test.BatchUpdateParameterServer(trainers)
    server.model = module
    server.optimizer = torch.optim.SGD(module.parameters(), lr=0.5, momentum=0.9)
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    return lambda gradients: server.update_and_fetch_model(_Here(server), gradients)


def _ours(module: torch.nn.Module, trainers: int) -> Any:
    server = example.BatchUpdateParameterServer(
        module, trainers, lambda parameters: torch.optim.SGD(parameters, lr=0.5, momentum=0.9)
    )
    return lambda gradients: server.update_and_fetch(gradients, 0)


_REPORTS = {
    "plain": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]],
    "none-first": [[1.0, 2.0], [3.0, 4.0], [None, 1.0], [1.0, 1.0]],
    "none-second": [[1.0, None], [3.0, 4.0], [1.0, 1.0]],
    "none-of-all-later": [[1.0, 2.0], [3.0, 4.0], [None, 1.0], [None, 1.0], [1.0, 1.0]],
    "too-few": [[1.0], [1.0, 2.0], [1.0, 2.0]],
    "nan": [[1.0, float("nan")], [1.0, 2.0]],
}


def _answers(build: Any, reports: list[list[float | None]]) -> list[Any]:
    """What a server says to each report, and the parameters after it."""
    module = torch.nn.Linear(1, 1)
    for parameter in module.parameters():
        torch.nn.init.ones_(parameter)
    report, answers = build(module, 2), []
    for gradients in reports:
        pairs = zip(gradients, module.parameters(), strict=False)
        try:
            answer = report(
                [None if gradient is None else torch.full_like(like, gradient) for gradient, like in pairs]
            ).done()
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        answers.append((answer, *(parameter.item() for parameter in module.parameters())))
    return answers


@pytest.mark.filterwarnings("ignore:Fail to import hypothesis:ImportWarning")
@pytest.mark.parametrize("name", _REPORTS)
def test_our_text_of_torchs_example_does_as_theirs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert str(_answers(_ours, _REPORTS[name])) == str(_answers(_theirs, _REPORTS[name]))
