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
from everyrank.parity.script.data import IN_VAIN
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


def around(owner: Any, name: str, change: Callable[..., Any]) -> None:
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
        around(owner, "init_process_group", start)
        around(owner, "new_group", group)
    from torch.distributed import device_mesh

    def mesh(inner: Callable[..., Any], kind: Any, *given: Any, **named: Any) -> Any:
        return inner("cpu" if _asks_for_cuda(kind) else kind, *given, **named)

    around(device_mesh, "init_device_mesh", mesh)
    dist.init_device_mesh = device_mesh.init_device_mesh


#: By function: which of its arguments may be the number of a GPU.
_NUMBERS = {"to": 1, "_parse_to": 0}


class _OnCPU(TorchFunctionMode):
    """Gives every function of torch's the CPU where it is given CUDA."""

    def __init__(self, note: Note) -> None:
        super().__init__()
        self._note = note

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "pin_memory":
            return args[0]
        index = _NUMBERS.get(name, len(args))
        is_index = index < len(args) and type(args[index]) is int  # `.to(local_rank)`
        if name == "cuda" or is_index or any(map(_asks_for_cuda, (*args, *named.values()))):
            if "distributed_c10d" not in sys._getframe(1).f_code.co_filename:  # it tries all devices
                self._note(f"the CPU stands for CUDA ({line_of_caller()})")
            if name == "cuda":
                return args[0]
            args = (*args[:index], "cpu", *args[index + 1 :]) if is_index else args
            args = tuple("cpu" if _asks_for_cuda(each) else each for each in args)
            named = {key: "cpu" if _asks_for_cuda(each) else each for key, each in named.items()}
        return func(*args, **named)


def _devices(note: Note) -> None:
    if torch.cuda.is_available():
        return
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if any(word in Path(sys.argv[0]).read_text() for word in ("cuda", "nccl", "accelerator")):
            _OnCPU(note).__enter__()  # a mode costs a little at each call
            _on_cpu_in(sys.argv[0], note)

    def nothing(inner: Callable[..., Any], *given: Any, **named: Any) -> Any:
        return None

    for name in ("set_device", "synchronize", "empty_cache", "reset_peak_memory_stats"):
        around(torch.cuda, name, nothing)

    def wrapper(inner: Callable[..., Any], self: Any, module: nn.Module, *given: Any, **named: Any) -> Any:
        if given or named.get("device_ids"):
            note(f"DistributedDataParallel has no device_ids on the CPU ({line_of_caller()})")
        named.pop("device_ids", None)
        named.pop("output_device", None)
        return inner(self, module, None, None, *given[2:], **named)

    around(nn.parallel.DistributedDataParallel, "__init__", wrapper)


def _on_cpu_in(script: str, note: Note) -> None:
    """Give the script itself, and no package, a GPU for each rank, which is the CPU; it loads files there, too."""

    def count(inner: Callable[..., Any], *given: Any, **named: Any) -> Any:
        return _size() if os.path.realpath(sys._getframe(2).f_code.co_filename) == own else inner(*given, **named)

    def load(inner: Callable[..., Any], file: Any, map_location: Any = None, *given: Any, **named: Any) -> Any:
        if _asks_for_cuda(map_location) or isinstance(map_location, dict):
            map_location = "cpu"
        return inner(file, map_location, *given, **named)

    own = os.path.realpath(script)
    for owner in (torch.cuda, torch.accelerator):
        around(owner, "device_count", count)
    around(torch, "load", load)


# --- data ------------------------------------------------------------------------------------------


def _size() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))


def _divide_batches(note: Note) -> None:
    size = _size()
    divided: dict[int, int] = {}  # by dataset: a framework makes a loader anew from another's values

    def loader(inner: Callable[..., Any], self: Any, dataset: Any, *given: Any, **named: Any) -> Any:
        batch = given[0] if given else named.get("batch_size", 1)
        whole = isinstance(batch, int) and named.get("batch_sampler") is None
        if size > 1 and whole and divided.get(id(dataset)) != batch:
            if batch % size:
                note(f"the batch of {batch} rows cannot be divided by {size} ranks ({line_of_caller()})")
            else:
                note(f"the batch of {batch} rows is {batch // size} on each of {size} ranks ({line_of_caller()})")
                named.pop("batch_size", None)
                given = (batch // size, *given[1:])
                divided[id(dataset)] = given[0]
        if size > 1 and named.get("batch_sampler") is not None and id(dataset) not in divided:
            note(f"{IN_VAIN} ({line_of_caller()})")
        inner(self, dataset, *given, **named)
        _seed_shuffle(self.sampler)

    around(data.DataLoader, "__init__", loader)


def _seed_shuffle(sampler: Any) -> None:
    """Let a shuffle without a generator be the same at each size, whatever was drawn before."""
    if isinstance(sampler, data.RandomSampler) and sampler.generator is None:
        sampler.generator = torch.Generator().manual_seed(0)


class _MyRows:
    """The batches of one rank's loader, of which each rank takes its rows."""

    def __init__(self, batches: Any) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        return (batch[_rank() :: _size()] for batch in self._batches)

    def __len__(self) -> int:
        return len(self._batches)


def _undealt(batches: Any) -> Any:
    """Return the batches of one rank: no sampler cuts them by rank, torch's or accelerate's."""
    found: list[Any] = [batches, getattr(batches, "sampler", None), getattr(batches, "batch_sampler", None)]
    for each in found:
        if isinstance(each, data.DistributedSampler):
            each.num_replicas, each.rank = 1, 0
            each.num_samples = each.total_size = len(each.dataset)  # type: ignore[arg-type]
        elif hasattr(each, "num_processes") and hasattr(each, "process_index"):
            each.num_processes, each.process_index = 1, 0
    return batches


def _share_batches(note: Note) -> None:
    def loader(inner: Callable[..., Any], self: Any, dataset: Any, *given: Any, **named: Any) -> Any:
        inner(self, dataset, *given, **named)
        if self.batch_sampler is None or isinstance(dataset, data.IterableDataset):
            note(f"--same-data knows no loader of this kind ({line_of_caller()})")
            return
        _seed_shuffle(self.sampler)
        if _size() > 1:
            note(f"each rank has its rows of one rank's batch ({line_of_caller()})")

    def batches(self: Any) -> Any:
        dealt = deals.fget(self)
        if self.batch_sampler is None or isinstance(self.dataset, data.IterableDataset):
            return dealt
        return _MyRows(_undealt(dealt)) if _size() > 1 else _undealt(dealt)

    around(data.DataLoader, "__init__", loader)
    deals: Any = data.DataLoader.__dict__["_index_sampler"]  # when it is gone through: it may be made anew until then
    data.DataLoader._index_sampler = property(batches)  # type: ignore[method-assign, assignment]
