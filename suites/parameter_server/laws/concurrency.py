"""The law of ``parameter-server`` about reports at the same time."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
import torch.distributed.rpc as rpc
from everyrank.suites.arena.subject_errors import subject_acts
from everyrank.suites.compare.comparison import check
from everyrank.suites.errors import Deviation, kinds
from everyrank.suites.parameter_server import points
from everyrank.suites.parameter_server.arena import Arena, Served
from everyrank.suites.parameter_server.contract import CONTRACT
from everyrank.suites.parameter_server.reports import PATIENCE, Report, parameters
from everyrank.suites.parameter_server.stopping import NOT_THE_SERVERS, install_trace

law = CONTRACT.law

#: In this many rounds, other threads get a turn at every line of the server.
_BY_LINES = 25


class Count(torch.nn.Module):
    """A model with one number, which counts: gradients are whole numbers, and so are their means."""

    def __init__(self) -> None:
        super().__init__()
        self.value = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))


def share(trainer: int, trainers: int) -> torch.Tensor:
    """Return a gradient of a trainer: the sum shows how often it was counted."""
    return torch.tensor(float(trainers * 16**trainer), dtype=torch.float64)


@dataclass(frozen=True, kw_only=True)
class RoundPoint(points.ServerPoint):
    """A point with a number of rounds."""

    rounds: int


def _concurrent() -> Iterator[RoundPoint]:
    for trainers in (2, 4):
        yield points.point(RoundPoint, "", trainers, core=trainers == 4, rounds=1000)
    yield points.point(RoundPoint, "", 3, core=False, far=True, rounds=100)


@law("lost-update", _concurrent)
def lost_update(arena: Arena, point: RoundPoint) -> None:
    """Over 1,000 rounds in which all trainers report at the same instant, each report counts exactly once."""
    trainers, rounds = point.trainers, point.rounds
    served = arena.serve(Count(), trainers, points.sgd(lr=1.0))
    if served.far is not None:
        turns = itertools.count()
        served.door.within = lambda: by_lines() if next(turns) < _BY_LINES * trainers else nullcontext()
        futures = [
            rpc.rpc_async(f"worker{1 + trainer}", counting, args=(served.far, trainer, trainers, rounds))
            for trainer in range(trainers)
        ]
        with subject_acts():
            counted = [future.wait() for future in futures]
    else:
        counted = _together(served, rounds)
    once = sum(16**trainer for trainer in range(trainers))
    for trainer, values in enumerate(counted):
        check(len(values) == rounds, f"trainer {trainer} came through {len(values)} of {rounds} rounds")
        for number, value in enumerate(values, 1):
            check(
                value == -once * number,
                f"round {number}: trainer {trainer} was answered {value:g}, and not {-once * number:g}: "
                "a report was lost, or counted twice",
            )


def counting(server: Any, trainer: int, trainers: int, rounds: int) -> list[float]:
    """Report, on a trainer's worker, round after round without a pause; return the answers."""
    gradient, values = share(trainer, trainers), []
    for _ in range(rounds):
        answer = server.rpc_sync().update_and_fetch([gradient], trainer)
        values.append(parameters(answer, trainer)[0].item())
    return values


def _together(served: Served, rounds: int) -> list[list[float]]:
    """Let each trainer report from its own thread, all at once, round after round; return their answers."""
    start = threading.Barrier(served.trainers)
    counted: list[list[float]] = [[] for _ in range(served.trainers)]
    failed: list[Exception] = []

    def work(trainer: int) -> None:
        gradient = share(trainer, served.trainers)
        try:
            for number in range(rounds):
                start.wait(4 * PATIENCE)
                with by_lines() if number < _BY_LINES else nullcontext():
                    report = Report(trainer, lambda: served.server.update_and_fetch([gradient], trainer))
                report.due(4 * PATIENCE)  # as long as the others may take to come
                counted[trainer].append(parameters(report.answer(), trainer)[0].item())
        except threading.BrokenBarrierError:
            pass  # another trainer has failed
        except Exception as error:
            failed.append(error)
            start.abort()

    with _switching():
        workers = [threading.Thread(target=work, args=(trainer,)) for trainer in range(served.trainers)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    if failed:
        if isinstance(failed[0], Deviation):
            raise failed[0]
        raise Deviation(f"a trainer raised {failed[0]!r}", kinds(failed[0]))
    return counted


@contextmanager
def _switching() -> Iterator[None]:
    """Let threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@contextmanager
def by_lines() -> Iterator[None]:
    """Let this thread give the others a turn before every line that is neither Python's own nor torch's."""
    before = sys.gettrace()
    install_trace(_trace)
    try:
        yield
    finally:
        install_trace(before)


_never = threading.Event()


def _trace(frame: FrameType, event: str, _: Any) -> Callable[..., Any] | None:
    if frame.f_code.co_filename.startswith(NOT_THE_SERVERS):
        return None
    if event == "line":
        _never.wait(1e-6)  # releases the interpreter for as short a time as the system can
    return _trace
