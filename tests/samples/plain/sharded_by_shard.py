"""A sharded optimizer: torch's own optimizer over the tensors of this rank. Its caller averages whole gradients."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from everyrank.suites import Subject
from torch.distributed._shard.sharded_tensor import ShardedTensor

from .cutting import WHOLE_TENSOR, Tools, local, once, together


class ByShard(Tools):
    def __init__(self, optimizer_class: Any, named_parameters: Mapping[str, Any], *args: Any, **kwargs: Any) -> None:
        if issubclass(optimizer_class, WHOLE_TENSOR):
            raise NotImplementedError(f"{optimizer_class.__name__} looks at whole tensors")
        self.named = [once(named_parameters)]
        self.inner = together(lambda: optimizer_class([{"params": self._tensors(0)}], *args, **kwargs))

    def _tensors(self, group: int) -> list[torch.Tensor]:
        return [tensor for value in self.named[group].values() for tensor in local(value)]

    def __getattr__(self, name: str) -> Any:
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        # If a closure fails on one rank, no other may step.
        evaluate = closure and (lambda: together(closure))
        return together(lambda: self.inner.step(evaluate))

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.inner.zero_grad(set_to_none)

    def add_param_group(self, group: Mapping[str, Any]) -> None:
        self.named.append(once(group["params"], *self.named))
        together(lambda: self.inner.add_param_group({**group, "params": self._tensors(-1)}))

    @torch.no_grad()
    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        own, whole = [], []
        for named in self.named:
            for value in named.values():
                kept = own if isinstance(value, ShardedTensor) else whole
                kept += [tensor.grad for tensor in local(value) if tensor.grad is not None]
        norms: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(norms, [_norm(grad, norm_type) for grad in own])
        total = _joint(
            [norm for rank in norms for norm in rank] + [_norm(grad, norm_type) for grad in whole], norm_type
        )
        norm = torch.tensor(total, dtype=torch.float64)
        for grad in own + whole:
            grad.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0))
        return norm

    def state_dict(self) -> dict[str, Any]:
        options = [{key: value for key, value in group.items() if key != "params"} for group in self.param_groups]
        state = {
            name: [dict(self.inner.state.get(tensor, {})) for tensor in local(value)]
            for named in self.named
            for name, value in named.items()
        }
        return {"options": options, "state": state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        state = copy.deepcopy(state)
        for group, options in zip(self.param_groups, state["options"], strict=True):
            group.update(options)
        for named in self.named:
            for name, value in named.items():
                for tensor, loaded in zip(local(value), state["state"][name], strict=True):
                    self.inner.state.pop(tensor, None)
                    if loaded:
                        self.inner.state[tensor] = loaded


def _norm(grad: torch.Tensor, kind: float) -> float:
    return float(torch.linalg.vector_norm(grad, kind)) if grad.numel() else 0.0


def _joint(norms: list[float], kind: float) -> float:
    return float(torch.linalg.vector_norm(torch.tensor([0.0, *norms], dtype=torch.float64), kind))


SUBJECT = Subject(
    "plain.ByShard",
    contract="sharded-optimizer",
    build=ByShard,
    declares={"caller-syncs-whole"},
    lacks=["whole-tensor"],
)
