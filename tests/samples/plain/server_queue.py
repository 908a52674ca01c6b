"""A parameter server with one thread, which takes reports from a queue."""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed.rpc as rpc
from everyrank.suites import Subject

_STOP = object()


def _value(future: torch.futures.Future[Any]) -> Any:
    """Raise what was set as an exception: RPC would pass it on as an answer."""
    return future.value()


class QueueServer:
    def __init__(
        self,
        module: torch.nn.Module,
        trainers: int,
        optimizer: Callable[[Any], torch.optim.Optimizer],
        *,
        timeout: float = 60.0,
        non_finite: bool = True,
    ) -> None:
        self.reports: queue.SimpleQueue[Any] = queue.SimpleQueue()
        work = _Work(self.reports, module, trainers, optimizer, timeout, non_finite)
        threading.Thread(target=work.run, daemon=True).start()
        weakref.finalize(self, self.reports.put, _STOP)

    @rpc.functions.async_execution
    def update_and_fetch(self, gradients: Sequence[Any], trainer: int) -> torch.futures.Future[Any]:
        future: torch.futures.Future[Any] = torch.futures.Future()
        self.reports.put((trainer, [None if each is None else each.clone() for each in gradients], future))
        return future.then(_value)


class _Work:
    """What the thread does, and all that only it touches."""

    def __init__(
        self, reports: Any, module: Any, trainers: int, optimizer: Any, timeout: float, finite: bool
    ) -> None:
        self.reports, self.trainers, self.timeout, self.non_finite = reports, trainers, timeout, finite
        self.parameters = list(module.parameters())
        self.optimizer = optimizer(self.parameters)
        self.round: dict[int, Any] = {}
        self.until: float | None = None

    def run(self) -> None:
        while True:
            try:
                report = self.reports.get(
                    timeout=None if self.until is None else max(0, self.until - time.monotonic())
                )
            except queue.Empty:
                self._answer(TimeoutError(f"{len(self.round)} of {self.trainers} trainers reported in time"))
                continue
            if report is _STOP:
                return
            self._take(*report)

    def _take(self, trainer: int, gradients: list[Any], future: Any) -> None:
        if problem := self._problem(trainer, gradients):
            future.set_exception(ValueError(problem))
            return
        if not self.round:
            self.until = time.monotonic() + self.timeout
        self.round[trainer] = gradients, future
        if len(self.round) == self.trainers:
            try:
                self._update()
            except Exception as error:
                self._answer(error)
            else:
                self._answer(None)

    def _update(self) -> None:
        self.optimizer.zero_grad()
        for gradients, _ in self.round.values():
            for parameter, gradient in zip(self.parameters, gradients, strict=True):
                if gradient is not None:
                    part = gradient / self.trainers
                    parameter.grad = part if parameter.grad is None else parameter.grad + part
        self.optimizer.step()

    def _answer(self, error: Exception | None) -> None:
        done, self.round, self.until = self.round, {}, None
        for _, future in done.values():
            if error is None:
                future.set_result([parameter.detach().clone() for parameter in self.parameters])
            else:
                future.set_exception(error)

    def _problem(self, trainer: int, gradients: list[Any]) -> str:
        if trainer in self.round:
            return f"trainer {trainer} has already reported"
        if len(gradients) != len(self.parameters):
            return f"the number of gradients is {len(gradients)} instead of {len(self.parameters)}"
        for gradient, parameter in zip(gradients, self.parameters, strict=True):
            if gradient is not None:
                if gradient.shape != parameter.shape:
                    return f"shape {tuple(gradient.shape)} instead of {tuple(parameter.shape)}"
                if gradient.dtype != parameter.dtype:
                    return f"{gradient.dtype} instead of {parameter.dtype}"
                if not (self.non_finite or gradient.to_dense().isfinite().all()):
                    return "a value is not finite"
        return ""


SUBJECT = Subject("plain.QueueServer", contract="parameter-server", build=QueueServer)
