"""The subjects of ``rpc-optimizer``: torch's DistributedOptimizer, by both of its paths, and the exemplar."""

from __future__ import annotations

from typing import Any

import torch
from everyrank.fixtures.exemplars.rpc_optimizer import RpcOptimizer
from everyrank.suites.subject import Subject
from torch.distributed.optim import DistributedOptimizer


def _eager(optimizer: Any, parameters: Any, *args: Any, **kwargs: Any) -> DistributedOptimizer:
    """The path that torch takes where TorchScript is off, as PYTORCH_JIT=0 has it."""
    state: Any = torch.jit._state
    enabled = state._enabled.enabled
    state._enabled.enabled = False
    try:
        return DistributedOptimizer(optimizer, parameters, *args, **kwargs)
    finally:
        state._enabled.enabled = enabled


EXEMPLAR = Subject("everyrank.RpcOptimizer", contract="rpc-optimizer", build=RpcOptimizer)
SCRIPTED = Subject(
    "torch.DistributedOptimizer.scripted", contract="rpc-optimizer", build=DistributedOptimizer, known="scripted.toml"
)
EAGER = Subject("torch.DistributedOptimizer.eager", contract="rpc-optimizer", build=_eager, known="eager.toml")


class _Nothing:
    """Takes everything and does nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def step(self, context_id: int) -> None:
        pass


NOTHING = Subject("nothing", contract="rpc-optimizer", build=_Nothing)
