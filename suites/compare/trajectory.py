"""A reference run: its values after each step, and as bytes for a file."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch

Gradients = dict[str, torch.Tensor | None]


@dataclass(frozen=True)
class Step:
    """The reference after one step; ``gradients`` are those of its first backward, before any clipping."""

    gradients: Gradients
    values: dict[str, torch.Tensor]
    buffers: dict[str, torch.Tensor]


@dataclass(frozen=True)
class Trajectory:
    """A whole reference run. Do not write to it: it is cached and shared."""

    start: dict[str, torch.Tensor]
    steps: list[Step] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """How many bytes its tensors would take if all were dense."""
        tensors: list[torch.Tensor | None] = list(self.start.values())
        for step in self.steps:
            tensors += [*step.gradients.values(), *step.values.values(), *step.buffers.values()]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors if tensor is not None)


class _Numbers(msgspec.Struct, array_like=True):
    """A tensor: its dtype, shape and numbers; if it is sparse, its indices and values instead of numbers."""

    dtype: str
    shape: list[int]
    data: bytearray = msgspec.field(default_factory=bytearray)
    sparse: list[_Numbers] = []


class _Run(msgspec.Struct, array_like=True):
    start: dict[str, _Numbers]
    steps: list[tuple[dict[str, _Numbers | None], dict[str, _Numbers], dict[str, _Numbers]]]


def to_bytes(run: Trajectory) -> bytes:
    """Return a run as bytes: numbers and no objects."""
    steps = [(_pack_gradients(step.gradients), _pack(step.values), _pack(step.buffers)) for step in run.steps]
    return msgspec.msgpack.encode(_Run(_pack(run.start), steps))


def from_bytes(packed: bytes) -> Trajectory:
    """Return the run that ``to_bytes`` got, equal bit for bit."""
    run = msgspec.msgpack.decode(packed, type=_Run)
    steps = [
        Step(_unpack_gradients(grads), _unpack(values), _unpack(buffers)) for grads, values, buffers in run.steps
    ]
    return Trajectory(_unpack(run.start), steps)


def _pack(tensors: dict[str, torch.Tensor]) -> dict[str, _Numbers]:
    return {name: _numbers(tensor) for name, tensor in tensors.items()}


def _pack_gradients(gradients: Gradients) -> dict[str, _Numbers | None]:
    return {name: None if tensor is None else _numbers(tensor) for name, tensor in gradients.items()}


def _unpack(packed: dict[str, _Numbers]) -> dict[str, torch.Tensor]:
    return {name: _tensor(numbers) for name, numbers in packed.items()}


def _unpack_gradients(packed: dict[str, Any]) -> Gradients:
    return {name: None if numbers is None else _tensor(numbers) for name, numbers in packed.items()}


def _numbers(tensor: torch.Tensor) -> _Numbers:
    dtype, shape = str(tensor.dtype).removeprefix("torch."), list(tensor.shape)
    if tensor.is_sparse:
        return _Numbers(dtype, shape, sparse=[_numbers(tensor.indices()), _numbers(tensor.values())])
    data = bytearray(tensor.numel() * tensor.element_size())
    if data:
        torch.frombuffer(data, dtype=tensor.dtype).copy_(tensor.detach().reshape(-1))
    return _Numbers(dtype, shape, data)


def _tensor(numbers: _Numbers) -> torch.Tensor:
    dtype = getattr(torch, numbers.dtype)
    if numbers.sparse:
        indices, values = map(_tensor, numbers.sparse)
        return torch.sparse_coo_tensor(indices, values, numbers.shape, is_coalesced=True, check_invariants=True)
    if not math.prod(numbers.shape):
        return torch.empty(numbers.shape, dtype=dtype)
    return torch.frombuffer(numbers.data, dtype=dtype).reshape(numbers.shape)
