"""What the plain sharded optimizers share: tools for modules, this rank's tensors, errors told to all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._shard.sharded_tensor import Shard, ShardedTensor, ShardedTensorMetadata, TensorProperties
from torch.distributed._shard.sharding_spec import ShardMetadata

WHOLE_TENSOR = (torch.optim.Adafactor, torch.optim.LBFGS, torch.optim.Muon)


class RankError(RuntimeError):
    """An error on one rank, raised on all."""


def together(act: Callable[[], Any]) -> Any:
    """Do this on all ranks, and raise on all of them if one fails."""
    result, problem = None, None
    try:
        result = act()
    except RankError:
        raise  # all ranks have it
    except Exception as error:
        problem = f"{type(error).__name__}: {_text(error)}"
    problems: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(problems, problem)
    texts = [f"rank {rank} raised {each}" for rank, each in enumerate(problems) if each]
    if texts:
        raise RankError("\n".join(texts))
    return result


def _text(error: Exception) -> str:
    try:
        return str(error)
    except Exception:
        return ""


def local(value: Any) -> list[torch.Tensor]:
    """Return this rank's tensors of a parameter."""
    return [shard.tensor for shard in value.local_shards()] if isinstance(value, ShardedTensor) else [value]


def once(named: Mapping[str, Any], *earlier: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out further names of the same parameter, and those of earlier groups."""
    seen = {id(value): "" for group in earlier for value in group.values()}
    return {name: value for name, value in named.items() if seen.setdefault(id(value), name) == name}


class Tools:
    """The two tools for modules."""

    @staticmethod
    def named_parameters(module: nn.Module, prefix: str = "", recurse: bool = True) -> Iterator[tuple[str, Any]]:
        yield from module.named_parameters(prefix, recurse)
        for path, each in module.named_modules(prefix=prefix) if recurse else [(prefix, module)]:
            for name, value in vars(each).items():
                if isinstance(value, ShardedTensor):
                    yield f"{path}.{name}" if path else name, value

    @staticmethod
    def shard_parameter(module: nn.Module, name: str, spec: Any) -> None:
        whole = module.get_parameter(name)
        rows, chunks = whole.shape[spec.dim], len(spec.placements)
        full = -(-rows // chunks)
        shards, described = [], []
        for number, placement in enumerate(spec.placements):
            start = min(rows, number * full)
            offsets, sizes = [0] * whole.dim(), list(whole.shape)
            offsets[spec.dim], sizes[spec.dim] = start, min(full, rows - start)
            described.append(ShardMetadata(offsets, sizes, placement))
            if placement.rank() == dist.get_rank():
                tensor = whole.detach().narrow(spec.dim, start, sizes[spec.dim]).clone()
                shards.append(Shard(tensor.requires_grad_(whole.requires_grad), described[-1]))
        properties = TensorProperties(dtype=whole.dtype, requires_grad=whole.requires_grad)
        metadata = ShardedTensorMetadata(described, whole.size(), properties)
        made = ShardedTensor._init_from_local_shards_and_global_metadata(shards, metadata)
        cut = nn.Parameter(made, requires_grad=whole.requires_grad)
        for each in module.modules():
            for own, value in list(each._parameters.items()):
                if value is whole:
                    each._parameters[own] = cut
