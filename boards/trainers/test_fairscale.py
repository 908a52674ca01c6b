"""fairscale: its sharded optimizer under DDP, and its DDP that reduces gradients to their owners."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from everyrank.suites import Lack, Subject, conformance
from everyrank.suites.trainer.subjects.common import Adapter
from torch import nn
from torch.nn.parallel import DistributedDataParallel

pytest.importorskip("fairscale", reason="pip install fairscale")
from fairscale.nn.data_parallel import ShardedDataParallel
from fairscale.optim.oss import OSS

NO_LBFGS = Lack(NotImplementedError, "each rank would evaluate the closure as often as its own part asks for")


class Sharded(Adapter):
    """DDP, and an optimizer of which each rank has a part."""

    def wrap(self, model: nn.Module) -> Any:
        return DistributedDataParallel(model, find_unused_parameters=True)

    def optimize(self, optimizer_class: Callable[..., Any], parameters: list[Any], args: Any, kwargs: Any) -> Any:
        if optimizer_class is torch.optim.LBFGS:
            raise NotImplementedError(NO_LBFGS.reason)
        return OSS(parameters, optim=optimizer_class, **kwargs)

    def unsynced(self) -> AbstractContextManager[Any]:
        return self.wrapped.no_sync()

    def clip(self, max_norm: float) -> None:
        self.optimizer.clip_grad_norm(max_norm)

    def state_dict(self) -> dict[str, Any]:
        self.optimizer.consolidate_state_dict(0)
        state = [self.optimizer.state_dict() if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(state)
        return {"model": self.model.state_dict(), "optimizer": state[0]}


class Reduced(Sharded):
    """Gradients go to the owners of the parameters alone."""

    def wrap(self, model: nn.Module) -> Any:
        return model  # the wrapper needs the optimizer

    def optimize(self, *args: Any) -> Any:
        optimizer = super().optimize(*args)
        self.wrapped = ShardedDataParallel(self.model, optimizer)
        return optimizer


LACKS = ["owns", {"parity.closure[*]": NO_LBFGS, "errors.arguments[LBFGS-*]": NO_LBFGS}]

SHARDED = Subject(
    "fairscale.oss",
    contract="trainer",
    build=Sharded,
    lacks=LACKS,
    known=["torch:ddp", "fairscale_oss.toml"],
    # torch says it once in a process, and the ledger has what comes of it.
    warns=("ignore:Grad strides do not match bucket view strides:UserWarning",),
    package="fairscale",
)
REDUCED = Subject(
    "fairscale.sharded_ddp",
    contract="trainer",
    build=Reduced,
    declares=frozenset({"same-graph", "trusts-init", "trusts-order"}),
    lacks=LACKS,
    known="fairscale_sharded_ddp.toml",
    package="fairscale",
)


@conformance(SHARDED, REDUCED)
def test_fairscale(case: Any) -> None:
    case.run()
