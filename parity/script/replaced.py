"""What stands in a script for what CPU ranks have not: the CPU for CUDA, gloo for NCCL; and another batch size."""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from everyrank.parity.values.lines import line_of_caller
from torch import nn
from torch.utils import data

Note = Callable[[str], None]


def replace(note: Note, find: Note, options: Sequence[str]) -> None:
    """Put in place what the command asks for."""
    _backends(note)
    _devices(note)
    _watch_samplers(find)
    if "global-batch" in options:
        _divide_batches(note)
    if "same-data" in options:
        _share_batches(note)


def _around(owner: Any, name: str, change: Callable[..., Any]) -> None:
    """Let a function see, and change, the arguments of another."""
    inner = getattr(owner, name)

    @functools.wraps(inner)
    def watched(*given: Any, **named: Any) -> Any:
        return change(inner, *given, **named)

    setattr(owner, name, watched)


# --- devices ---------------------------------------------------------------------------------------


def _asks_for_cuda(value: Any) -> bool:
    if isinstance(value, str):
        return value == "cuda" or value.startswith("cuda:")
    return isinstance(value, torch.device) and value.type == "cuda"


def _backends(note: Note) -> None:
    def start(inner: Callable[..., Any], *given: Any, **named: Any) -> Any:
        backend, *others = given or (named.pop("backend", None),)
        if isinstance(backend, str) and "nccl" in backend.lower():
            note(f"gloo stands for nccl ({line_of_caller()})")
            backend = "gloo"
        named.pop("device_id", None)
        return inner(backend, *others, **named)

    def group(inner: Callable[..., Any], *given: Any, **named: Any) -> Any:
        if "nccl" in str(named.get("backend")):
            named["backend"] = "gloo"
        return inner(*given, **named)

    for owner in (dist, dist.distributed_c10d):
        _around(owner, "init_process_group", start)
        _around(owner, "new_group", group)
    from torch.distributed import device_mesh

    def mesh(inner: Callable[..., Any], kind: Any, *given: Any, **named: Any) -> Any:
        return inner("cpu" if _asks_for_cuda(kind) else kind, *given, **named)

    _around(device_mesh, "init_device_mesh", mesh)
    dist.init_device_mesh = device_mesh.init_device_mesh


def _devices(note: Note) -> None:
    if torch.cuda.is_available():
        return

    def on_cpu(inner: Callable[..., Any], *given: Any, **named: Any) -> Any:
        asked = [*map(_asks_for_cuda, given), *map(_asks_for_cuda, named.values())]
        if any(asked):
            note(f"the CPU stands for CUDA ({line_of_caller()})")
            given = tuple("cpu" if _asks_for_cuda(each) else each for each in given)
            named = {name: "cpu" if _asks_for_cuda(each) else each for name, each in named.items()}
        elif inner.__name__ == "to" and len(given) > 1 and type(given[1]) is int:
            note(f"the CPU stands for CUDA ({line_of_caller()})")  # `.to(local_rank)`
            given = (given[0], "cpu", *given[2:])
        return inner(*given, **named)

    def stays(inner: Callable[..., Any], self: Any, *given: Any, **named: Any) -> Any:
        note(f"the CPU stands for CUDA ({line_of_caller()})")
        return self

    def nothing(inner: Callable[..., Any], *given: Any, **named: Any) -> Any:
        return None

    for owner in (nn.Module, torch.Tensor):
        _around(owner, "to", on_cpu)
        _around(owner, "cuda", stays)
    for name in (
        *("arange", "as_tensor", "empty", "eye", "full", "linspace", "ones", "rand", "randint", "randn", "randperm"),
        *("tensor", "zeros"),
    ):
        _around(torch, name, on_cpu)
    for name in ("set_device", "synchronize", "empty_cache", "reset_peak_memory_stats"):
        _around(torch.cuda, name, nothing)

    def wrapper(inner: Callable[..., Any], self: Any, module: nn.Module, *given: Any, **named: Any) -> Any:
        if given or named.get("device_ids"):
            note(f"DistributedDataParallel has no device_ids on the CPU ({line_of_caller()})")
        named.pop("device_ids", None)
        named.pop("output_device", None)
        return inner(self, module, None, None, *given[2:], **named)

    _around(nn.parallel.DistributedDataParallel, "__init__", wrapper)


# --- data ------------------------------------------------------------------------------------------


def _size() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))


def _watch_samplers(find: Note) -> None:
    """Notice a sampler that shuffles each epoch alike, since nobody says which epoch it is."""
    seen: Counter[tuple[int, int]] = Counter()

    def iterate(inner: Callable[..., Any], self: Any) -> Any:
        seen[id(self), self.epoch] += 1
        if self.shuffle and seen[id(self), self.epoch] == 2:
            find(
                f"the DistributedSampler begins a second epoch in the order of the first ({line_of_caller()}): "
                "call sampler.set_epoch(epoch) before each"
            )
        return inner(self)

    _around(data.DistributedSampler, "__iter__", iterate)


def _divide_batches(note: Note) -> None:
    size = _size()

    def loader(inner: Callable[..., Any], self: Any, dataset: Any, *given: Any, **named: Any) -> Any:
        batch = given[0] if given else named.get("batch_size", 1)
        if size > 1 and isinstance(batch, int) and named.get("batch_sampler") is None:
            if batch % size:
                note(f"the batch of {batch} rows cannot be divided by {size} ranks ({line_of_caller()})")
            else:
                note(f"the batch of {batch} rows is {batch // size} on each of {size} ranks ({line_of_caller()})")
                given = given[1:]
                named["batch_size"] = batch // size
                return inner(self, dataset, named.pop("batch_size"), *given, **named)
        return inner(self, dataset, *given, **named)

    _around(data.DataLoader, "__init__", loader)


class _MyRows:
    """The batches of one rank's loader, of which each rank takes its rows."""

    def __init__(self, batches: Any) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        return (batch[_rank() :: _size()] for batch in self._batches)

    def __len__(self) -> int:
        return len(self._batches)


def _share_batches(note: Note) -> None:
    def loader(inner: Callable[..., Any], self: Any, dataset: Any, *given: Any, **named: Any) -> Any:
        inner(self, dataset, *given, **named)
        sampler, batches = self.sampler, self.batch_sampler
        if batches is None or isinstance(dataset, data.IterableDataset):
            note(f"--same-data knows no loader of this kind ({line_of_caller()})")
            return
        if isinstance(sampler, data.DistributedSampler):
            sampler.num_replicas, sampler.rank = 1, 0
            sampler.num_samples = sampler.total_size = len(dataset)
        if isinstance(sampler, data.RandomSampler) and sampler.generator is None:
            sampler.generator = torch.Generator().manual_seed(0)
        if _size() > 1:
            note(f"each rank has its rows of one rank's batch ({line_of_caller()})")
            object.__setattr__(self, "batch_sampler", _MyRows(batches))

    _around(data.DataLoader, "__init__", loader)
