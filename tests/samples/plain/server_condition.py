"""A parameter server that waits by a condition variable, in a thread for each report."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed.rpc as rpc
from everyrank.suites import Subject


class _Round:
    def __init__(self, parameters: int) -> None:
        self.sums: list[Any] = [None] * parameters
        self.reported: set[int] = set()
        self.end: Any = None
        """The new model, or the error, if it is over."""


class ConditionServer:
    def __init__(
        self,
        module: torch.nn.Module,
        trainers: int,
        optimizer: Callable[[Any], torch.optim.Optimizer],
        *,
        timeout: float = 60.0,
        non_finite: bool = False,
    ) -> None:
        self.module, self.trainers, self.timeout, self.non_finite = module, trainers, timeout, non_finite
        self.parameters = list(module.parameters())
        self.optimizer = optimizer(module.parameters())
        self.changed = threading.Condition()
        self.round = _Round(len(self.parameters))

    @rpc.functions.async_execution
    def update_and_fetch(self, gradients: Sequence[Any], trainer: int) -> torch.futures.Future[Any]:
        future: torch.futures.Future[Any] = torch.futures.Future()
        with self.changed:
            self._check(gradients)
            round = self.round
            if trainer in round.reported:
                raise RuntimeError(f"trainer {trainer} reports twice in a round")
            round.reported.add(trainer)
            for number, gradient in enumerate(gradients):
                if gradient is not None:
                    before = round.sums[number]
                    round.sums[number] = gradient.clone() if before is None else before + gradient
            if len(round.reported) == self.trainers:
                self._finish(round)
        threading.Thread(target=self._wait, args=(round, future), daemon=True).start()
        return future.then(lambda _: self._answer(round))

    def _finish(self, round: _Round) -> None:
        for parameter, total in zip(self.parameters, round.sums, strict=True):
            parameter.grad = None if total is None else total / self.trainers
        try:
            self.optimizer.step()
            self.optimizer.zero_grad()
            round.end = copy.deepcopy(self.module)
        except Exception as error:
            round.end = error
        self.round = _Round(len(self.parameters))
        self.changed.notify_all()

    def _wait(self, round: _Round, future: torch.futures.Future[Any]) -> None:
        with self.changed:
            if not self.changed.wait_for(lambda: round.end is not None, self.timeout):
                late = self.trainers - len(round.reported)
                round.end = TimeoutError(f"{late} of {self.trainers} trainers did not report in {self.timeout} s")
                self.round = _Round(len(self.parameters))
                self.changed.notify_all()
        future.set_result(None)  # now and then, torch ends the process where threads set one exception on futures

    def _answer(self, round: _Round) -> Any:
        if isinstance(round.end, Exception):
            raise round.end
        return copy.deepcopy(round.end)

    def _check(self, gradients: Sequence[Any]) -> None:
        if len(gradients) != len(self.parameters):
            raise ValueError(f"expected {len(self.parameters)} gradients, got {len(gradients)}")
        for gradient, parameter in zip(gradients, self.parameters, strict=True):
            if gradient is None:
                continue
            if gradient.size() != parameter.size():
                raise ValueError(f"wrong size {tuple(gradient.size())}, expected {tuple(parameter.size())}")
            if gradient.dtype != parameter.dtype:
                raise ValueError(f"wrong type {gradient.dtype}, expected {parameter.dtype}")
            if not self.non_finite and not torch.isfinite(gradient.to_dense()).all():
                raise ValueError("a gradient has an inf or a nan")


SUBJECT = Subject("plain.ConditionServer", contract="parameter-server", build=ConditionServer)
