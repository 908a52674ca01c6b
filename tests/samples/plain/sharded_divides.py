"""A sharded optimizer that averages the gradients of whole parameters as DDP does: it divides, then adds up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from everyrank.suites import Subject
from torch.distributed._shard.sharded_tensor import ShardedTensor

from .cutting import WHOLE_TENSOR, Tools, local, once, together


class Divides(Tools):
    """No more than the contract names: no ``param_groups``, no hooks."""

    def __init__(self, optimizer_class: Any, named_parameters: Mapping[str, Any], *args: Any, **kwargs: Any) -> None:
        if issubclass(optimizer_class, WHOLE_TENSOR):
            raise NotImplementedError(f"{optimizer_class.__name__} needs whole tensors")
        self._given: list[dict[str, Any]] = []
        self._tensors: dict[str, torch.Tensor] = {}
        self._whole: list[torch.Tensor] = []
        self._optimizer: Any = together(lambda: optimizer_class([self._group(named_parameters)], *args, **kwargs))

    def _group(self, named: Mapping[str, Any]) -> dict[str, Any]:
        mine: dict[str, torch.Tensor] = {}
        self._given.append(once(named, *self._given))
        for name, value in self._given[-1].items():
            for number, tensor in enumerate(local(value)):
                mine[f"{name}:{number}"] = tensor
            if not isinstance(value, ShardedTensor):
                self._whole.append(value)
        self._tensors |= mine
        return {"params": list(mine.values())}

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        if closure is None:
            self._average()
            return together(self._optimizer.step)

        def evaluate() -> Any:
            with torch.enable_grad():
                loss = together(closure)
            self._average()
            return loss

        return together(lambda: self._optimizer.step(evaluate))

    @torch.no_grad()
    def _average(self) -> None:
        size = dist.get_world_size()
        for tensor in self._whole:
            if tensor.grad is None:
                continue
            if tensor.grad.is_sparse:
                parts: list[Any] = [None] * size
                mine = tensor.grad.coalesce()
                dist.all_gather_object(parts, (mine.indices(), mine.values() / size))
                indices = torch.cat([part[0] for part in parts], dim=1)
                values = torch.cat([part[1] for part in parts])
                tensor.grad = torch.sparse_coo_tensor(indices, values, tensor.shape).coalesce()
            else:
                mean = (tensor.grad / size).contiguous()
                dist.all_reduce(mean)
                tensor.grad = mean

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._optimizer.zero_grad(set_to_none)

    def add_param_group(self, group: Mapping[str, Any]) -> None:
        together(lambda: self._optimizer.add_param_group({**group, **self._group(group["params"])}))

    @torch.no_grad()
    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> float:
        self._average()
        whole = {id(tensor) for tensor in self._whole}
        infinite = norm_type == float("inf")
        total = torch.zeros(1, dtype=torch.float64)
        gradients = [tensor.grad for tensor in self._tensors.values() if tensor.grad is not None]
        for tensor in self._tensors.values():
            if tensor.grad is None or not tensor.numel() or (id(tensor) in whole and dist.get_rank()):
                continue  # rank 0 counts what is whole
            size = tensor.grad.abs().double()
            total = torch.maximum(total, size.max()) if infinite else total + size.pow(norm_type).sum()
        if infinite:  # gloo's maximum may forget what is undefined
            totals = [torch.empty_like(total) for _ in range(dist.get_world_size())]
            dist.all_gather(totals, total)
            total = torch.stack(totals).max()
        else:
            dist.all_reduce(total)
        norm = float(total) if infinite else float(total) ** (1 / norm_type)
        for gradient in gradients:
            gradient.mul_(torch.tensor(max_norm / (norm + 1e-6), dtype=torch.float64).clamp(max=1.0))
        return norm

    def state_dict(self) -> dict[str, Any]:
        numbers = self._numbers(self._optimizer.state_dict())
        packed = self._optimizer.state_dict()
        state = {name: packed["state"][number] for name, number in numbers.items() if number in packed["state"]}
        groups = [{key: value for key, value in group.items() if key != "params"} for group in packed["param_groups"]]
        return {"state": state, "groups": groups}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        packed = self._optimizer.state_dict()
        numbers = self._numbers(packed)
        packed["state"] = {numbers[name]: value for name, value in state["state"].items()}
        groups = zip(packed["param_groups"], state["groups"], strict=True)
        packed["param_groups"] = [{**saved, "params": group["params"]} for group, saved in groups]
        self._optimizer.load_state_dict(packed)

    def _numbers(self, packed: dict[str, Any]) -> dict[str, int]:
        """By name, the number that torch's state dict gives to each tensor."""
        held = [tensor for group in self._optimizer.param_groups for tensor in group["params"]]
        numbers = [number for group in packed["param_groups"] for number in group["params"]]
        by_id = {id(tensor): number for tensor, number in zip(held, numbers, strict=True)}
        return {name: by_id[id(tensor)] for name, tensor in self._tensors.items()}


SUBJECT = Subject("plain.Divides", contract="sharded-optimizer", build=Divides, lacks=["whole-tensor"])
