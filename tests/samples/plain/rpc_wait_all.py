"""An optimizer over RPC: all owners are asked at once, and all answers are awaited."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from everyrank.suites import Subject

_LOCK = threading.Lock()
"""Held while any optimizer on this owner steps."""


class Local:
    def __init__(self, optimizer_class: Any, rrefs: Sequence[Any], args: Any, kwargs: Any) -> None:
        self.optimizer = optimizer_class([rref.local_value() for rref in rrefs], *args, **kwargs)

    def step(self, context_id: int) -> None:
        with _LOCK:
            gradients = dist_autograd.get_gradients(context_id)
            for group in self.optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = gradients.get(parameter)
            try:
                self.optimizer.step()
            finally:
                self.optimizer.zero_grad()


def _make(*arguments: Any) -> Any:
    return rpc.RRef(Local(*arguments))


def _step(local: Any, context_id: int) -> None:
    local.local_value().step(context_id)


def _all(futures: Sequence[tuple[str, Any]]) -> list[Any]:
    """Wait for all, and only then raise what was raised."""
    answers, errors = [], []
    for name, future in futures:
        try:
            answers.append(future.wait())
        except Exception as error:
            errors.append((name, error))
    if len(errors) > 1:
        raise RuntimeError("; ".join(f"{name} raised {error}" for name, error in errors)) from errors[0][1]
    if errors:
        raise errors[0][1]
    return answers


class WaitsForAll:
    def __init__(self, optimizer_class: Any, rrefs: Sequence[Any], *args: Any, **kwargs: Any) -> None:
        if len(rrefs) == 0:
            optimizer_class([], *args, **kwargs)  # which raises what torch.optim raises
        names = list(dict.fromkeys(rref.owner_name() for rref in rrefs))
        self.locals = _all(
            [
                (
                    name,
                    rpc.rpc_async(
                        name,
                        _make,
                        args=(optimizer_class, [rref for rref in rrefs if rref.owner_name() == name], args, kwargs),
                    ),
                )
                for name in names
            ]
        )

    @torch.no_grad()
    def step(self, context_id: int) -> None:
        _all([(each.owner_name(), rpc.rpc_async(each.owner(), _step, (each, context_id))) for each in self.locals])


SUBJECT = Subject("plain.WaitsForAll", contract="rpc-optimizer", build=WaitsForAll)
