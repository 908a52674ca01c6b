"""Needs that this machine may not meet, and the reason in words."""

from __future__ import annotations

import contextlib
import os


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
    """Why a backend cannot be used, or nothing."""
    import torch.distributed as dist

    if not dist.is_available():
        return "torch was built without distributed"
    if not dist.is_backend_available(backend):
        return f"needs the backend {backend}, which this torch does not have"
    return ""
