"""torch's example of a batch-updating parameter server, as a subject.

Written after the tutorial "Implementing Batch RPC Processing Using Asynchronous Executions"
(https://docs.pytorch.org/tutorials/intermediate/rpc_async_execution.html) and its newest form, a test of torch's own
(``torch.testing._internal.distributed.rpc.examples.parameter_server_test``). torch has no such class for users, who
copy it; so this is our own text of it, which does in the same order what theirs does: sum into ``.grad`` before the
lock, count under it, step and answer with the live model when the count is full.

Ours takes the module and the optimizer, which are fixed there. It has no limit for a round and no check of what is
reported, so it takes the two options of the contract and makes nothing of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed.rpc as rpc


class BatchUpdateParameterServer:
    """torch's pattern, weaknesses and all: see docs/findings/parameter-server.md."""

    def __init__(
        self,
        module: torch.nn.Module,
        trainers: int,
        optimizer: Callable[[Any], torch.optim.Optimizer],
        *,
        timeout: float = 0.0,
        non_finite: bool = True,
    ) -> None:
        self.model = module
        self.needed = trainers
        self.count = 0
        self.lock = threading.Lock()
        self.new_model: torch.futures.Future[torch.nn.Module] = torch.futures.Future()
        self.optimizer = optimizer(module.parameters())
        for parameter in module.parameters():
            parameter.grad = torch.zeros_like(parameter)

    @rpc.functions.async_execution  # type: ignore[untyped-decorator]
    def update_and_fetch(
        self, gradients: Sequence[torch.Tensor], trainer: int
    ) -> torch.futures.Future[torch.nn.Module]:
        for parameter, gradient in zip(self.model.parameters(), gradients, strict=True):
            if parameter.grad is None:
                parameter.grad = gradient
            else:
                parameter.grad += gradient
        with self.lock:
            answer = self.new_model
            self.count += 1
            if self.count >= self.needed:
                for parameter in self.model.parameters():
                    parameter.grad /= self.needed  # type: ignore[assignment, operator]  # as theirs: None where all gave None
                self.count = 0
                self.optimizer.step()
                self.optimizer.zero_grad()
                answer.set_result(self.model)
                self.new_model = torch.futures.Future()
        return answer
