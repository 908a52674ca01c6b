"""The GPUs that this process may use, each under its own name, found without touching CUDA.

What the driver's library (NVML) says comes first. Where there is none (ROCm, WSL), or where it cannot tell which
GPU an index means, a clean interpreter asks torch.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from everyrank.errors import MisuseError

#: A made-up list of GPUs, as JSON: so that whatever is done for GPUs can be tested without one.
MADE_UP = "EVERYRANK_DEVICES"


@dataclass(frozen=True)
class Gpu:
    """A GPU, or a MIG instance of one."""

    uuid: str  # the same in every process on this machine, however it is numbered there
    name: str = ""
    memory: int = 0  # bytes
    capability: tuple[int, int] = (0, 0)
    peers: frozenset[str] = frozenset()  # those that it reaches without the host
    instances: tuple[Gpu, ...] = field(default=(), repr=False)  # in MIG mode these are used, not itself
    mig_mode: bool = False
    handle: str = ""  # what the variable calls it, where that is not the uuid

    @property
    def is_instance(self) -> bool:
        return self.uuid.startswith("MIG-")

    @property
    def visible_as(self) -> str:
        return self.handle or self.uuid


def found() -> tuple[Gpu, ...]:
    """The GPUs that this process may use now."""
    made_up_list, order = os.environ.get(MADE_UP), os.environ.get("CUDA_DEVICE_ORDER", "")
    return _found(made_up_list, os.environ.get(variable()), order)


@functools.lru_cache(maxsize=16)
def _found(made_up_list: str | None, asked: str | None, order: str) -> tuple[Gpu, ...]:
    if made_up_list is not None:
        return visible(made_up(made_up_list), asked)
    if not _torch_can():
        return ()
    from everyrank import nvml

    machine = nvml.gpus()
    if machine is None or _numbers_are_doubtful(machine, asked, order):
        return _ask_torch(asked)
    return visible(machine, asked)


def on_this_machine() -> int:
    """How many GPUs the driver knows, whether or not torch and this process can use them."""
    from everyrank import nvml

    return 0 if MADE_UP in os.environ else len(nvml.gpus() or ())


def variable() -> str:
    """The environment variable that says which GPUs a process may use."""
    torch = sys.modules.get("torch")
    hip = torch is not None and torch.version.hip is not None
    return "HIP_VISIBLE_DEVICES" if hip and "HIP_VISIBLE_DEVICES" in os.environ else "CUDA_VISIBLE_DEVICES"


def visible(machine: Sequence[Gpu], asked: str | None) -> tuple[Gpu, ...]:
    """What the variable lets through, read as CUDA reads it: up to the first entry that names nothing, and
    nothing at all if one is named twice."""
    if asked is None:
        return tuple(one for gpu in machine for one in _usable(gpu))
    chosen: list[Gpu] = []
    for entry in asked.split(","):
        gpu = _named(machine, entry.strip())
        if gpu is None:
            break
        if gpu in chosen:
            return ()
        chosen.append(gpu)
    return tuple(chosen)


def _usable(gpu: Gpu) -> tuple[Gpu, ...]:
    return gpu.instances if gpu.mig_mode else (gpu,)


def _named(machine: Sequence[Gpu], entry: str) -> Gpu | None:
    """An index, or a uuid that may be cut short as long as it is one GPU's. For a GPU in MIG mode CUDA takes its
    first instance."""
    if entry.startswith(("GPU-", "MIG-")):
        everything = [one for gpu in machine for one in (gpu, *gpu.instances)]
        close = [gpu for gpu in everything if gpu.uuid.startswith(entry)]
        exact = [gpu for gpu in close if gpu.uuid == entry] or close
        gpu = exact[0] if len(exact) == 1 else None
    else:
        digits = entry.removeprefix("+")
        number = int(digits) if digits.isdecimal() else -1
        gpu = machine[number] if 0 <= number < len(machine) else None
    if gpu is None:
        return None
    return next(iter(_usable(gpu)), None)


def _numbers_are_doubtful(machine: Sequence[Gpu], asked: str | None, order: str) -> bool:
    """CUDA numbers the fastest GPU first, NVML by the bus: the same only where all are of one model."""
    by_number = asked is not None and not asked.startswith(("GPU-", "MIG-")) and asked.strip() not in ("", "-1")
    return by_number and order != "PCI_BUS_ID" and len({gpu.name for gpu in machine}) > 1


def _torch_can() -> bool:
    """Whether this torch was built for GPUs at all."""
    import torch

    return torch.version.cuda is not None or getattr(torch.version, "hip", None) is not None


_ASK = """
import json, torch
gpus = []
for number in range(torch.cuda.device_count()):
    one = torch.cuda.get_device_properties(number)
    others = [other for other in range(torch.cuda.device_count()) if other != number]
    gpus.append({
        "uuid": str(getattr(one, "uuid", "")), "name": one.name, "memory": one.total_memory,
        "capability": [one.major, one.minor],
        "peers": [other for other in others if torch.cuda.can_device_access_peer(number, other)],
    })
print(json.dumps(gpus))
"""


def _ask_torch(asked: str | None) -> tuple[Gpu, ...]:
    """What torch finds in an interpreter of its own, which may touch CUDA."""
    try:
        done = subprocess.run([sys.executable, "-c", _ASK], capture_output=True, text=True, timeout=120, check=True)
        told: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return ()
    handles = [entry.strip() for entry in asked.split(",")] if asked else [str(number) for number in range(len(told))]
    return as_torch_told(told, handles)


def as_torch_told(told: list[dict[str, Any]], handles: list[str]) -> tuple[Gpu, ...]:
    """torch's answer as a list; where it knows no uuid, a GPU goes by the name that the variable has for it."""
    uuids = [f"GPU-{one['uuid']}" if one["uuid"] else f"GPU-{handles[number]}" for number, one in enumerate(told)]
    return tuple(
        Gpu(
            uuids[number],
            one["name"],
            one["memory"],
            (one["capability"][0], one["capability"][1]),
            frozenset(uuids[other] for other in one["peers"]),
            handle=handles[number],
        )
        for number, one in enumerate(told)
    )


def made_up(text: str) -> tuple[Gpu, ...]:
    """``4``, or a list of ``{"uuid": "GPU-a", "memory": "80GB", "capability": [9, 0], "peers": ["GPU-b"]}``."""
    try:
        told = json.loads(text)
        if isinstance(told, int):
            uuids = [f"GPU-{number}" for number in range(told)]
            told = [{"uuid": uuid, "peers": uuids, "memory": "80GB", "capability": [9, 0]} for uuid in uuids]
        return tuple(_made_up_one(one) for one in told)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise MisuseError(f"{MADE_UP} is no list of GPUs ({type(error).__name__}: {error}): {text!r}") from None


def _made_up_one(one: dict[str, Any]) -> Gpu:
    major, minor = one.get("capability", (0, 0))
    instances = tuple(_made_up_one(instance) for instance in one.get("instances", ()))
    memory = bytes_of(one.get("memory", 0))
    peers = frozenset(one.get("peers", ())) - {one["uuid"]}
    return Gpu(one["uuid"], one.get("name", ""), memory, (major, minor), peers, instances, "instances" in one)


_UNITS = {"kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "B": 1}


def bytes_of(value: object) -> int:
    """A number of bytes, or a text such as ``"20GB"``; raises ValueError."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if isinstance(value, str):
        for unit, size in _UNITS.items():
            if value.endswith(unit):
                number = float(value.removesuffix(unit))
                if 0 <= number < float("inf"):
                    return int(number * size)
                break
    raise ValueError(f"not an amount of memory: {value!r}")
