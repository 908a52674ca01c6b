"""What stands in a script for what CPU ranks have not: the CPU for CUDA, gloo for NCCL; and another batch size."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from everyrank.parity.script import samplers
from everyrank.parity.values.lines import line_of_caller
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils import data

Note = Callable[[str], None]


def replace(note: Note, find: Note, options: Sequence[str]) -> None:
    """Put in place what the command asks for."""
    _backends(note)
    _devices(note)
    samplers.watch(find)
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


class _OnCPU(TorchFunctionMode):
    """Gives every function of torch's the CPU where it is given CUDA."""

    def __init__(self, note: Note) -> None:
        super().__init__()
        self._note = note

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        name = getattr(func, "__name__", "")
        is_index = name == "to" and len(args) > 1 and type(args[1]) is int  # `.to(local_rank)`
        if name == "cuda" or is_index or any(map(_asks_for_cuda, (*args, *named.values()))):
            if "distributed_c10d" not in sys._getframe(1).f_code.co_filename:  # it tries all devices
                self._note(f"the CPU stands for CUDA ({line_of_caller()})")
            if name == "cuda":
                return args[0]
            args = (args[0], "cpu", *args[2:]) if is_index else args
            args = tuple("cpu" if _asks_for_cuda(each) else each for each in args)
            named = {key: "cpu" if _asks_for_cuda(each) else each for key, each in named.items()}
        return func(*args, **named)


def _devices(note: Note) -> None:
    if torch.cuda.is_available():
        return
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if "cuda" in Path(sys.argv[0]).read_text():  # a mode costs a little at each call
            _OnCPU(note).__enter__()

    def nothing(inner: Callable[..., Any], *given: Any, **named: Any) -> Any:
        return None

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


def _divide_batches(note: Note) -> None:
    size = _size()

    def loader(inner: Callable[..., Any], self: Any, dataset: Any, *given: Any, **named: Any) -> Any:
        batch = given[0] if given else named.get("batch_size", 1)
        if size > 1 and isinstance(batch, int) and named.get("batch_sampler") is None:
            if batch % size:
                note(f"the batch of {batch} rows cannot be divided by {size} ranks ({line_of_caller()})")
            else:
                note(f"the batch of {batch} rows is {batch // size} on each of {size} ranks ({line_of_caller()})")
                named.pop("batch_size", None)
                return inner(self, dataset, batch // size, *given[1:], **named)
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
