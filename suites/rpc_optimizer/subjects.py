"""The subjects of ``rpc-optimizer``: torch's DistributedOptimizer on both of its paths, and the exemplar."""

from __future__ import annotations

from typing import Any

import torch
from everyrank.fixtures import optimizers
from everyrank.fixtures.exemplars.rpc_optimizer import RpcOptimizer
from everyrank.fixtures.quiet import distributed_optim, distributed_optim_utils
from everyrank.model.versions import is_in_force
from everyrank.suites.engine.subject import Lack, Subject
from everyrank.suites.rpc_optimizer.arena import KEEPS_LETTERS


def _eager(optimizer: Any, parameters: Any, *args: Any, **kwargs: Any) -> distributed_optim.DistributedOptimizer:
    """Build on the path that torch takes without TorchScript, as with PYTORCH_JIT=0."""
    state: Any = torch.jit._state
    enabled = state._enabled.enabled
    state._enabled.enabled = False
    try:
        return distributed_optim.DistributedOptimizer(optimizer, parameters, *args, **kwargs)
    finally:
        state._enabled.enabled = enabled


#: The twins that ask whether lr is at least 0, which torch refuses for two elements, with or without TorchScript.
_COMPARE_LR = ("Adam", "Adamax", "AdamW")


def _refused_by_the_twins() -> dict[str, Lack]:
    """Return what the functional twins refuse with an error: arguments that they lack, and what TorchScript refuses.

    From 2.14 on, torch no longer compiles them with TorchScript.
    """
    lacks: dict[str, Lack] = {}
    scripted = is_in_force("<2.14", torch.__version__)
    for row in optimizers.TABLE:
        if row.optimizer not in distributed_optim_utils.functional_optim_map:
            continue
        for variant in row.variants:
            cases = f"parity.*[{row.name}-{variant.name}-ws3]"
            if scripted and (variant.arguments.get("foreach") or variant.arguments.get("fused")):
                lacks[cases] = Lack(RuntimeError, "torch.jit.script does not support foreach and fused")
            if variant.arguments.get("decoupled_weight_decay"):
                lacks[cases] = Lack(TypeError, "the functional twin has no decoupled_weight_decay")
        lacks[f"parity.arguments[{row.name}-explicit-defaults-ws2]"] = Lack(
            TypeError, "the functional twins have no differentiable"
        )
        if scripted or row.name in _COMPARE_LR:
            lacks[f"errors.arguments[{row.name}-lr-two-elements-ws2]"] = Lack(
                RuntimeError, "refused, by another error"
            )
    lacks["errors.arguments[*-fused-differentiable-ws2]"] = Lack(
        TypeError, "the functional twins have no differentiable"
    )
    return lacks


EXEMPLAR = Subject(
    "everyrank.RpcOptimizer",
    contract="rpc-optimizer",
    build=RpcOptimizer,
    declares=frozenset({KEEPS_LETTERS}),
    exemplar=True,
)
SCRIPTED = Subject(
    "torch.DistributedOptimizer.scripted",
    contract="rpc-optimizer",
    build=distributed_optim.DistributedOptimizer,
    lacks=_refused_by_the_twins(),
    known="scripted.toml",
    turn=0,
    # For each functional optimizer that torch scripts; torch shows this warning despite all filters.
    warns=("ignore:`TorchScript` support for functional optimizers is deprecated:DeprecationWarning",),
)
EAGER = Subject(
    "torch.DistributedOptimizer.eager", contract="rpc-optimizer", build=_eager, known="eager.toml", turn=1
)


class _Nothing:
    """Accept everything and do nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def step(self, context_id: int) -> None:
        pass


NOTHING = Subject("nothing", contract="rpc-optimizer", build=_Nothing)
