"""A parameter server with a lock and futures."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed.rpc as rpc
from everyrank.suites import Subject


def _value(future: torch.futures.Future[Any]) -> Any:
    """Raise what was set as an exception: RPC would pass it on as an answer."""
    return future.value()


class LockServer:
    def __init__(
        self,
        module: torch.nn.Module,
        trainers: int,
        optimizer: Callable[[Any], torch.optim.Optimizer],
        *,
        timeout: float = 60.0,
        non_finite: bool = True,
    ) -> None:
        self.parameters = list(module.parameters())
        self.trainers, self.timeout, self.non_finite = trainers, timeout, non_finite
        self.optimizer = optimizer(self.parameters)
        self.lock = threading.Lock()
        self.round: dict[int, tuple[list[Any], torch.futures.Future[Any]]] = {}
        self.timer: threading.Timer | None = None

    @rpc.functions.async_execution
    def update_and_fetch(self, gradients: Sequence[Any], trainer: int) -> torch.futures.Future[Any]:
        self._check(gradients)
        future: torch.futures.Future[Any] = torch.futures.Future()
        with self.lock:
            if trainer in self.round:
                raise ValueError(f"trainer {trainer} has reported in this round")
            self.round[trainer] = [None if each is None else each.clone() for each in gradients], future
            if len(self.round) == 1:
                self.timer = threading.Timer(self.timeout, self._expire, (self.round,))
                self.timer.daemon = True
                self.timer.start()
            if len(self.round) < self.trainers:
                return future.then(_value)
            done, self.round = self.round, {}
            assert self.timer is not None
            self.timer.cancel()
            error = self._apply([done[number][0] for number in sorted(done)])
            answers = [[each.detach().clone() for each in self.parameters] for _ in done]
        for (_, waiting), answer in zip(done.values(), answers, strict=True):
            if error is None:
                waiting.set_result(answer)
            else:
                waiting.set_exception(error)
        return future.then(_value)

    def _apply(self, parts: list[list[Any]]) -> Exception | None:
        for parameter, given in zip(self.parameters, zip(*parts, strict=True), strict=True):
            there = [gradient for gradient in given if gradient is not None]
            parameter.grad = sum(there[1:], start=there[0]) / self.trainers if there else None
        try:
            self.optimizer.step()
        except Exception as error:
            return error
        return None

    def _expire(self, round: dict[int, Any]) -> None:
        with self.lock:
            if self.round is not round:
                return
            self.round = {}
        for _, waiting in round.values():
            waiting.set_exception(TimeoutError(f"{len(round)} of {self.trainers} reported in {self.timeout} s"))

    def _check(self, gradients: Sequence[Any]) -> None:
        if len(gradients) != len(self.parameters):
            raise ValueError(f"{len(gradients)} gradients for {len(self.parameters)} parameters")
        for number, (gradient, parameter) in enumerate(zip(gradients, self.parameters, strict=True)):
            if gradient is None:
                continue
            if gradient.shape != parameter.shape:
                raise ValueError(f"gradient {number} has shape {list(gradient.shape)}, not {list(parameter.shape)}")
            if gradient.dtype != parameter.dtype:
                raise TypeError(f"gradient {number} is of dtype {gradient.dtype}, not {parameter.dtype}")
            values = gradient.coalesce().values() if gradient.is_sparse else gradient
            if not self.non_finite and not bool(torch.isfinite(values).all()):
                raise ValueError(f"gradient {number} is not finite")


SUBJECT = Subject("plain.LockServer", contract="parameter-server", build=LockServer)
