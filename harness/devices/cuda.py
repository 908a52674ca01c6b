"""CUDA's GPUs: those that this process may use, with their unique names, found without initialising CUDA.

The driver's library (NVML) is asked first. If there is none (ROCm, WSL), or if it does not show which GPU an index
means, a clean interpreter asks torch.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from everyrank.devices.protocol import DeviceType, Gpu, bytes_of
from everyrank.errors import MisuseError

#: The environment variable with a made-up list of GPUs, as JSON, to test without a GPU.
MADE_UP = "EVERYRANK_DEVICES"


class Cuda(DeviceType):
    """NVIDIA's GPUs, and AMD's, which torch calls by the same name."""

    name, title, backend = "cuda", "GPU", "nccl"
    files = ("/dev/nvidia", "/dev/kfd", "/dev/dri")

    @property
    def variable(self) -> str:
        torch = sys.modules.get("torch")
        hip = torch is not None and torch.version.hip is not None
        return "HIP_VISIBLE_DEVICES" if hip and "HIP_VISIBLE_DEVICES" in os.environ else "CUDA_VISIBLE_DEVICES"

    def found(self) -> tuple[Gpu, ...]:
        made_up_list, order = os.environ.get(MADE_UP), os.environ.get("CUDA_DEVICE_ORDER", "")
        return _found(made_up_list, os.environ.get(self.variable), order)

    def on_this_machine(self) -> int:
        from everyrank.devices import nvml

        return 0 if MADE_UP in os.environ else len(nvml.gpus() or ())


CUDA = Cuda()


@functools.lru_cache(maxsize=16)
def _found(made_up_list: str | None, listed: str | None, order: str) -> tuple[Gpu, ...]:
    if made_up_list is not None:
        return visible(made_up(made_up_list), listed)
    if not _torch_can():
        return ()
    from everyrank.devices import nvml

    gpus = nvml.gpus()
    if gpus is None or _numbers_are_ambiguous(gpus, listed, order):
        return _ask_torch(listed)
    return visible(gpus, listed)


def visible(gpus: Sequence[Gpu], listed: str | None) -> tuple[Gpu, ...]:
    """Return the GPUs that the variable lists, read as CUDA reads it.

    The list ends before the first entry that names no GPU. If it names a GPU twice, no GPU is visible.
    """
    if listed is None:
        return tuple(usable for gpu in gpus for usable in _usable(gpu))
    chosen: list[Gpu] = []
    for entry in listed.split(","):
        gpu = _find_named(gpus, entry.strip())
        if gpu is None:
            break
        if gpu in chosen:
            return ()
        chosen.append(gpu)
    return tuple(chosen)


def _usable(gpu: Gpu) -> tuple[Gpu, ...]:
    return gpu.instances if gpu.mig_mode else (gpu,)


def _find_named(gpus: Sequence[Gpu], entry: str) -> Gpu | None:
    """Return the GPU that an entry names, or None.

    An entry is an index, or a uuid or its beginning, if only one GPU has it. For a GPU in MIG mode, CUDA uses its
    first instance.
    """
    if entry.startswith(("GPU-", "MIG-")):
        everything = [device for gpu in gpus for device in (gpu, *gpu.instances)]
        close = [gpu for gpu in everything if gpu.uuid.startswith(entry)]
        exact = [gpu for gpu in close if gpu.uuid == entry] or close
        gpu = exact[0] if len(exact) == 1 else None
    else:
        digits = entry.removeprefix("+")
        number = int(digits) if digits.isdecimal() else -1
        gpu = gpus[number] if 0 <= number < len(gpus) else None
    if gpu is None:
        return None
    return next(iter(_usable(gpu)), None)


def _numbers_are_ambiguous(gpus: Sequence[Gpu], listed: str | None, order: str) -> bool:
    """Return whether an index may mean another GPU to CUDA than to NVML.

    CUDA numbers the fastest GPU first, NVML goes by the bus. That is the same only if all GPUs are of one model.
    """
    by_number = listed is not None and not listed.startswith(("GPU-", "MIG-")) and listed.strip() not in ("", "-1")
    return by_number and order != "PCI_BUS_ID" and len({gpu.name for gpu in gpus}) > 1


def _torch_can() -> bool:
    """Return whether this torch was built for GPUs."""
    import torch

    return torch.version.cuda is not None or getattr(torch.version, "hip", None) is not None


_ASK = """
import json, torch
gpus = []
for number in range(torch.cuda.device_count()):
    gpu = torch.cuda.get_device_properties(number)
    others = [other for other in range(torch.cuda.device_count()) if other != number]
    gpus.append({
        "uuid": str(getattr(gpu, "uuid", "")), "name": gpu.name, "memory": gpu.total_memory,
        "capability": [gpu.major, gpu.minor],
        "peers": [other for other in others if torch.cuda.can_device_access_peer(number, other)],
    })
print(json.dumps(gpus))
"""


def _ask_torch(listed: str | None) -> tuple[Gpu, ...]:
    """Return the GPUs that torch finds in a separate interpreter, which may initialise CUDA."""
    try:
        done = subprocess.run([sys.executable, "-c", _ASK], capture_output=True, text=True, timeout=120, check=True)
        answer: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return ()
    handles = (
        [entry.strip() for entry in listed.split(",")] if listed else [str(number) for number in range(len(answer))]
    )
    return from_torch(answer, handles)


def from_torch(answer: list[dict[str, Any]], handles: list[str]) -> tuple[Gpu, ...]:
    """Make GPUs of torch's answer. A GPU without a uuid gets its name in the variable for one."""
    uuids = [f"GPU-{gpu['uuid']}" if gpu["uuid"] else f"GPU-{handles[number]}" for number, gpu in enumerate(answer)]
    return tuple(
        Gpu(
            uuids[number],
            gpu["name"],
            gpu["memory"],
            (gpu["capability"][0], gpu["capability"][1]),
            frozenset(uuids[other] for other in gpu["peers"]),
            handle=handles[number],
        )
        for number, gpu in enumerate(answer)
    )


def made_up(text: str) -> tuple[Gpu, ...]:
    """Make GPUs of a text.

    A number, such as ``4``, or a list of
    ``{"uuid": "GPU-a", "memory": "80GB", "capability": [9, 0], "peers": ["GPU-b"]}``.
    """
    try:
        entries = json.loads(text)
        if isinstance(entries, int):
            uuids = [f"GPU-{number}" for number in range(entries)]
            entries = [{"uuid": uuid, "peers": uuids, "memory": "80GB", "capability": [9, 0]} for uuid in uuids]
        return tuple(_made_up_gpu(entry) for entry in entries)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise MisuseError(f"{MADE_UP} is not a list of GPUs ({type(error).__name__}: {error}): {text!r}") from None


def _made_up_gpu(entry: dict[str, Any]) -> Gpu:
    major, minor = entry.get("capability", (0, 0))
    instances = tuple(_made_up_gpu(instance) for instance in entry.get("instances", ()))
    memory = bytes_of(entry.get("memory", 0))
    peers = frozenset(entry.get("peers", ())) - {entry["uuid"]}
    return Gpu(entry["uuid"], entry.get("name", ""), memory, (major, minor), peers, instances, "instances" in entry)
