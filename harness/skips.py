"""Needs that this machine may not meet, and the reason in words."""

from __future__ import annotations

import contextlib
import os

from everyrank.errors import MisuseError


def found_gpus() -> int:
    """How many GPUs this process may use, without initialising CUDA."""
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    import torch

    with contextlib.suppress(Exception):
        return torch.cuda.device_count() if torch.cuda.is_available() else 0
    return 0


def missing_gpus(needed: int) -> str:
    """``needs 4 GPUs, found 0``, or nothing."""
    if not needed:
        return ""
    found = found_gpus()
    if found >= needed:
        return ""
    return f"needs {needed} GPU{'s' if needed > 1 else ''}, found {found}"


def missing_backend(backend: str) -> str:
    """Why a backend cannot be used, or nothing. One that nobody has heard of is a misuse, no reason to skip."""
    import torch.distributed as dist

    if not dist.is_available():
        return "torch was built without distributed"
    for part in backend.split(","):
        name = part.rpartition(":")[2].lower()  # "gloo", or "cpu:gloo,cuda:nccl"
        if name not in dist.Backend.backend_list:
            known = ", ".join(one for one in dist.Backend.backend_list if one != dist.Backend.UNDEFINED)
            raise MisuseError(
                f"the backend {name!r} is not known to this torch, which knows {known}: "
                "register a backend of your own when the test file is imported"
            )
        if not dist.is_backend_available(name):
            return f"needs the backend {name}, which this torch does not have"
    return ""
