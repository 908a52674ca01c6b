"""The subjects of ``sharded-optimizer``: torch's ShardedOptimizer, and the exemplar."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from everyrank.fixtures.exemplars.sharded_optimizer import ShardedOptimizer
from everyrank.suites.engine.subject import Lack, Subject
from everyrank.suites.sharded_optimizer.arena import CALLER_SYNCS, DROPS_REFUSED, NONE_IS_ZERO
from torch import nn
from torch.distributed._shard import shard_parameter
from torch.distributed._shard.sharded_optim import ShardedOptimizer as TorchShardedOptimizer
from torch.distributed._shard.sharded_optim import named_params_with_sharded_tensor

EXEMPLAR = Subject(
    "everyrank.ShardedOptimizer",
    contract="sharded-optimizer",
    build=ShardedOptimizer,
    exemplar=True,
    declares=frozenset({NONE_IS_ZERO, DROPS_REFUSED}),
)


class _Torch(TorchShardedOptimizer):
    """torch's optimizer, with the functions of torch that a user would call for modules."""

    named_parameters = staticmethod(named_params_with_sharded_tensor)

    def __init__(self, optimizer_class: Any, named_parameters: Mapping[str, Any], *args: Any, **kwargs: Any) -> None:
        super().__init__(named_parameters, optimizer_class, *args, **kwargs)

    @staticmethod
    def shard_parameter(module: nn.Module, name: str, spec: Any) -> None:
        path, _, last = name.rpartition(".")
        shard_parameter(module.get_submodule(path), last, spec)


_STATE = Lack(NotImplementedError, "torch's ShardedOptimizer has no state dict and takes no further group")

_CLIP = Lack(AttributeError, "torch's ShardedOptimizer has no clip_grad_norm_")

TORCH = Subject(
    "torch.ShardedOptimizer",
    contract="sharded-optimizer",
    build=_Torch,
    lacks={"state.*": _STATE, "clip[*]": _CLIP},
    known="torch.toml",
    turn=0,
    declares=frozenset({CALLER_SYNCS}),
)

#: The same on four GPUs. It does not communicate, so it breaks the same laws there.
TORCH_CUDA = Subject(
    "torch.ShardedOptimizer.cuda",
    contract="sharded-optimizer",
    build=_Torch,
    sizes=(4,),
    device="cuda",
    lacks={"clip[*]": _CLIP},
    known="torch_cuda.toml",
    declares=frozenset({CALLER_SYNCS}),
)


class _Nothing:
    """Accept everything and do nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def step(self, closure: Any = None) -> None:
        pass

    def zero_grad(self, set_to_none: bool = True) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Any) -> None:
        pass

    def add_param_group(self, group: Any) -> None:
        pass

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> float:
        return 0.0

    @staticmethod
    def named_parameters(module: nn.Module, prefix: str = "", recurse: bool = True) -> Iterator[tuple[str, Any]]:
        return iter(())

    @staticmethod
    def shard_parameter(module: nn.Module, name: str, spec: Any) -> None:
        pass


NOTHING = Subject("nothing", contract="sharded-optimizer", build=_Nothing)
