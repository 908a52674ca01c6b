"""Seeds for every random generator that a test may use."""

from __future__ import annotations

import functools
import random
import sys

from everyrank.devices.cuda import CUDA


def seed_generators(seed: int) -> None:
    """Seed every random generator that a test may use."""
    random.seed(seed)
    if sys.modules.get("numpy") is not None:
        import numpy

        numpy.random.seed(seed % 2**32)
    if "torch" in sys.modules:
        import torch

        if accelerated():
            torch.manual_seed(seed)
        else:
            # The rest of manual_seed records a whole stack for each kind of device, in case that device is
            # initialised later: this takes milliseconds, on every rank, twice a test.
            torch.default_generator.manual_seed(seed)


@functools.cache
def accelerated() -> bool:
    """Return whether torch may have generators besides the CPU's. Called before ranks are forked."""
    import torch

    return (
        bool(CUDA.found())  # torch.cuda.is_available() may initialise CUDA if NVML gives no answer
        or torch.xpu.is_available()
        or torch.backends.mps.is_available()
        or torch._C._get_privateuse1_backend_name() != "privateuseone"
    )
