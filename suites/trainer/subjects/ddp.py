"""torch's DistributedDataParallel, with its options, and with the optimizers that torch has for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from everyrank.fixtures.quiet import distributed_optim
from everyrank.suites.engine.subject import Bound, Subject
from everyrank.suites.trainer.arena import SAME_GRAPH
from everyrank.suites.trainer.subjects.common import NO_LBFGS, Adapter
from everyrank.suites.trainer.subjects.ownership import Ownership, owned_parameters, whole
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel


class Ddp(Adapter):
    """DDP and a plain optimizer, as most scripts have them."""

    options: ClassVar[Mapping[str, Any]] = {"find_unused_parameters": True}

    def wrap(self, model: nn.Module) -> Any:
        return DistributedDataParallel(model, **self.options)

    def unsynced(self) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = self.wrapped.no_sync()
        return context

    def owns(self) -> dict[str, Ownership]:
        return owned_parameters(self.named())


class BucketViews(Ddp):
    options: ClassVar[Mapping[str, Any]] = {"find_unused_parameters": True, "gradient_as_bucket_view": True}


class StaticGraph(Ddp):
    options: ClassVar[Mapping[str, Any]] = {"static_graph": True}


class Fp16Hook(Ddp):
    def wrap(self, model: nn.Module) -> Any:
        wrapped = super().wrap(model)
        wrapped.register_comm_hook(None, fp16_compress_hook)
        return wrapped


class Zero(Ddp):
    """DDP, whose optimizer is sharded by ZeroRedundancyOptimizer."""

    def optimize(self, optimizer_class: Callable[..., Any], parameters: list[Any], args: Any, kwargs: Any) -> Any:
        if optimizer_class is torch.optim.LBFGS:
            # torch accepts it, and then each rank evaluates the closure as often as its own part asks for: a hang.
            raise NotImplementedError(NO_LBFGS.reason)
        return distributed_optim.ZeroRedundancyOptimizer(parameters, optimizer_class, **kwargs)  # type: ignore[arg-type]

    def owns(self) -> dict[str, Ownership]:
        mine = {value for group in self.optimizer.optim.param_groups for value in group["params"]}
        return {name: whole(value, 1) if value in mine else ([], 1) for name, value in self.named().items()}

    def state_dict(self) -> dict[str, Any]:
        self.optimizer.consolidate_state_dict(to=0)
        state = [self.optimizer.state_dict() if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(state)
        return {"model": self.model.state_dict(), "optimizer": state[0]}


#: The laws that DDP with another optimizer touches: the others are about gradients and modules.
OF_OPTIMIZERS = (
    "alias",
    "clip",
    "equal",
    "errors.arguments",
    "in-order",
    "large-world",
    "late",
    "parity.closure",
    "parity.groups",
    "parity.schedule",
    "parity.sparse",
    "parity.train",
    "state.*",
)

DDP = Subject("torch.DistributedDataParallel", contract="trainer", build=Ddp, known="ddp.toml", turn=0)
BUCKET_VIEWS = Subject(
    "torch.DistributedDataParallel(gradient_as_bucket_view)",
    contract="trainer",
    build=BucketViews,
    sizes=(3,),
    known="ddp_bucket_views.toml",
    variant_of=DDP,
    touches=("accumulate", "clip", "non-finite", "parity.models"),
)
STATIC_GRAPH = Subject(
    "torch.DistributedDataParallel(static_graph)",
    contract="trainer",
    build=StaticGraph,
    sizes=(3,),
    declares=frozenset({SAME_GRAPH}),
    known="ddp_static_graph.toml",
    variant_of=DDP,
    touches=("accumulate", "loss", "parity.models"),
)
FP16_HOOK = Subject(
    "torch.DistributedDataParallel(fp16_compress_hook)",
    contract="trainer",
    build=Fp16Hook,
    sizes=(3,),
    bound=Bound(0.02, "gradients travel as fp16"),
    known="ddp_fp16_hook.toml",
    variant_of=DDP,
    touches=("mean", "non-finite", "parity.models", "parity.train"),
)
ZERO = Subject(
    "torch.ZeroRedundancyOptimizer",
    contract="trainer",
    build=Zero,
    lacks={"parity.closure[*]": NO_LBFGS, "errors.arguments[LBFGS-*]": NO_LBFGS},
    known="zero.toml",
    variant_of=DDP,
    touches=OF_OPTIMIZERS,
)
