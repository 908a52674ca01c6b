"""A sharded optimizer that keeps each parameter whole on each rank, steps that, and cuts the result."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from everyrank.suites import Subject
from torch.distributed._shard.sharded_tensor import ShardedTensor

from .cutting import RankError, Tools, local, once, together


class KeepsWholes(Tools, torch.optim.Optimizer):
    def __init__(self, optimizer_class: Any, named_parameters: Mapping[str, Any], *args: Any, **kwargs: Any) -> None:
        self._named: dict[str, Any] = {}
        self._wholes: dict[str, torch.Tensor] = {}
        wholes = self._add(named_parameters)
        self._inner = together(lambda: optimizer_class(wholes, *args, **kwargs))
        super().__init__(wholes, self._inner.defaults)
        self.param_groups, self.state = self._inner.param_groups, self._inner.state

    def _add(self, named: Mapping[str, Any]) -> list[torch.Tensor]:
        added = once(named, self._named)
        for name, value in added.items():
            tensors = local(value)
            dtype = tensors[0].dtype if tensors else value.metadata().tensor_properties.dtype
            made = torch.zeros(tuple(value.size()), dtype=dtype)
            self._wholes[name] = made.requires_grad_(value.requires_grad)
        self._named |= added
        return [self._wholes[name] for name in added]

    def add_param_group(self, group: dict[str, Any]) -> None:
        if isinstance(group["params"], Mapping):
            wholes = self._add(group["params"])
            together(lambda: self._inner.add_param_group({**group, "params": wholes}))
        else:
            super().add_param_group(group)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        if closure is None:
            self._gather()
            together(self._inner.step)
            self._cut()
            return None

        def evaluate() -> Any:
            self._cut()
            with torch.enable_grad():
                loss = together(closure)
            self._gather(values=False)
            return loss

        self._gather()
        loss = together(lambda: self._inner.step(evaluate))
        self._cut()
        return loss

    @torch.no_grad()
    def _gather(self, values: bool = True) -> None:
        """Make the wholes of what all ranks have: values and gradients."""
        mine = {
            name: [
                (_index(value, number), tensor.detach(), tensor.grad) for number, tensor in enumerate(local(value))
            ]
            for name, value in self._named.items()
        }
        ranks: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(ranks, mine)
        for name, value in self._named.items():
            whole = self._wholes[name]
            whole.requires_grad_(value.requires_grad)
            pieces = [piece for rank in ranks for piece in rank[name]]
            self._refuse_mixtures(name, ranks)
            if values:
                for index, part, _ in pieces:
                    whole[index] = part
            if not any(grad is not None for _, _, grad in pieces):
                whole.grad = None
            elif isinstance(value, ShardedTensor):
                whole.grad = _joined(whole, [(index, grad) for index, _, grad in pieces if grad is not None])
            else:
                whole.grad = _mean([grad for _, _, grad in pieces])

    @staticmethod
    def _refuse_mixtures(name: str, ranks: list[Any]) -> None:
        kinds = [{grad.is_sparse for _, _, grad in rank[name] if grad is not None} for rank in ranks]
        sparse = [rank for rank, kind in enumerate(kinds) if True in kind]
        if sparse and any(False in kind for kind in kinds):
            raise RankError(f"the gradient of {name} on rank {sparse[0]} is sparse, others are dense")

    @torch.no_grad()
    def _cut(self) -> None:
        for name, value in self._named.items():
            for number, tensor in enumerate(local(value)):
                tensor.copy_(self._wholes[name][_index(value, number)])

    def zero_grad(self, set_to_none: bool = True) -> None:
        for value in self._named.values():
            for tensor in local(value):
                if tensor.grad is not None:
                    tensor.grad = None if set_to_none else torch.zeros_like(tensor.grad)

    @torch.no_grad()
    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        self._gather()
        total = torch.nn.utils.clip_grad_norm_(self._wholes.values(), max_norm, norm_type)
        for name, value in self._named.items():
            grad = self._wholes[name].grad
            for number, tensor in enumerate(local(value)):
                if grad is not None and tensor.grad is not None:
                    tensor.grad = grad[_index(value, number)].clone()
        return total

    def state_dict(self) -> dict[str, Any]:  # type: ignore[override]
        state = {name: self.state[whole] for name, whole in self._wholes.items() if whole in self.state}
        options = [{key: value for key, value in group.items() if key != "params"} for group in self.param_groups]
        return {"state": state, "options": options}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # type: ignore[override]
        state = copy.deepcopy(state)
        for group, options in zip(self.param_groups, state["options"], strict=True):
            group.update(options)
        self.state.clear()
        for name, loaded in state["state"].items():
            self.state[self._wholes[name]] = loaded


def _index(value: Any, number: int) -> Any:
    if not isinstance(value, ShardedTensor):
        return ...
    described = value.local_shards()[number].metadata
    parts = zip(described.shard_offsets, described.shard_sizes, strict=True)
    return tuple(slice(start, start + size) for start, size in parts)


def _joined(whole: torch.Tensor, parts: list[tuple[Any, torch.Tensor]]) -> torch.Tensor:
    if not parts[0][1].is_sparse:
        made = torch.zeros_like(whole)
        for index, grad in parts:
            made[index] = grad
        return made
    rows, values = [], []
    for index, grad in parts:
        # Repeated rows stay as they are, for a coalesced gradient would add them up in another order.
        filled = torch.zeros(grad._values().shape[0], *whole.shape[1:], dtype=whole.dtype)
        filled[(slice(None), *index[1:])] = grad._values()
        rows.append(grad._indices() + index[0].start)
        values.append(filled)
    return torch.sparse_coo_tensor(torch.cat(rows, 1), torch.cat(values), whole.shape)


def _mean(grads: list[torch.Tensor]) -> torch.Tensor:
    total = grads[0]
    for grad in grads[1:]:
        total = total + grad
    return total / len(grads)


SUBJECT = Subject("plain.KeepsWholes", contract="sharded-optimizer", build=KeepsWholes)
