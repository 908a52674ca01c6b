"""An optimizer over RPC: functions on the owners, which keep their optimizers by a number."""

from __future__ import annotations

import contextlib
import itertools
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from everyrank.suites import Subject

_KEPT: dict[tuple[str, int], Any] = {}
_STEPPING = threading.Lock()
_NUMBERS = itertools.count()


def _keep(key: tuple[str, int], optimizer_class: Any, rrefs: Sequence[Any], args: Any, kwargs: Any) -> None:
    _KEPT[key] = optimizer_class([rref.to_here() for rref in rrefs], *args, **kwargs)


def _drop(key: tuple[str, int]) -> None:
    _KEPT.pop(key, None)


def _step(key: tuple[str, int], context_id: int) -> str:
    optimizer = _KEPT[key]
    with _STEPPING:
        gradients = dist_autograd.get_gradients(context_id)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = gradients.get(parameter)
        optimizer.step()
    return ""


def _drop_everywhere(owners: list[str], key: tuple[str, int]) -> None:
    for owner in owners:
        with contextlib.suppress(Exception):  # the agent may have ended
            rpc.rpc_async(owner, _drop, (key,))


class SeveralError(Exception):
    """Several owners failed."""


class Functions:
    def __init__(self, optimizer_class: Any, rrefs: Sequence[Any], *args: Any, **kwargs: Any) -> None:
        if not rrefs:
            raise ValueError("optimizer got an empty parameter list")
        self.key = rpc.get_worker_info().name, next(_NUMBERS)
        self.owners = sorted({rref.owner_name() for rref in rrefs})
        weakref.finalize(self, _drop_everywhere, self.owners, self.key)
        self._on_owners(
            _keep,
            lambda owner: (optimizer_class, [rref for rref in rrefs if rref.owner_name() == owner], args, kwargs),
        )

    def __deepcopy__(self, memo: Any) -> Functions:
        raise NotImplementedError("the owners' state cannot be copied")

    def step(self, context_id: int) -> None:
        self._on_owners(_step, lambda owner: (context_id,))

    def _on_owners(self, function: Any, arguments: Any) -> None:
        futures = {owner: rpc.rpc_async(owner, function, (self.key, *arguments(owner))) for owner in self.owners}
        errors: dict[str, Exception] = {}
        for owner, future in futures.items():
            try:
                future.wait()
            except Exception as error:
                errors[owner] = error
        if len(errors) == 1:
            raise next(iter(errors.values()))
        if errors:
            raise SeveralError(", ".join(f"{owner}: {error}" for owner, error in errors.items()))


SUBJECT = Subject("plain.Functions", contract="rpc-optimizer", build=Functions)
