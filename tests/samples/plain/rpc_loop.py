"""An optimizer over RPC: an object on each owner, called one after the other."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from everyrank.suites import Subject


class Owner:
    """One owner's optimizer."""

    alone = threading.Lock()  # of all optimizers on this owner

    def __init__(self, optimizer_class: Any, rrefs: Sequence[Any], args: Any, kwargs: Any) -> None:
        self.parameters = [rref.local_value() for rref in rrefs]
        self.optimizer = optimizer_class(self.parameters, *args, **kwargs)

    def step(self, context_id: int) -> None:
        gradients = dist_autograd.get_gradients(context_id)
        with self.alone:
            for parameter in self.parameters:
                parameter.grad = gradients.get(parameter)
            self.optimizer.step()


def _make(*arguments: Any) -> Any:
    return rpc.RRef(Owner(*arguments))


class Loop:
    def __init__(self, optimizer_class: Any, rrefs: Sequence[Any], *args: Any, **kwargs: Any) -> None:
        if not rrefs:
            raise ValueError("optimizer got an empty parameter list")
        owned: dict[str, list[Any]] = {}
        for rref in rrefs:
            owned.setdefault(rref.owner_name(), []).append(rref)
        self.owners = [
            rpc.rpc_sync(name, _make, args=(optimizer_class, held, args, kwargs)) for name, held in owned.items()
        ]

    def step(self, context_id: int) -> None:
        errors = []
        for owner in self.owners:
            try:
                owner.rpc_sync().step(context_id)
            except Exception as error:
                errors.append((owner.owner_name(), error))
        if len(errors) == 1:
            raise errors[0][1]
        if errors:
            raise RuntimeError("\n".join(f"{name}: {error}" for name, error in errors))


SUBJECT = Subject("plain.Loop", contract="rpc-optimizer", build=Loop)
