"""Every generator that a test may draw from."""

from __future__ import annotations

import functools
import random
import sys

from everyrank import devices


def sow(seed: int) -> None:
    """Seed every generator that a test may draw from."""
    random.seed(seed)
    if sys.modules.get("numpy") is not None:
        import numpy

        numpy.random.seed(seed % 2**32)
    if "torch" in sys.modules:
        import torch

        if accelerated():
            torch.manual_seed(seed)
        else:
            # Without the rest of manual_seed, which notes a whole stack for each kind of device, in case it is
            # initialised later: milliseconds, on every rank, twice a test.
            torch.default_generator.manual_seed(seed)


@functools.cache
def accelerated() -> bool:
    """Whether torch may have generators beside the processor's. Asked before ranks are forked."""
    import torch

    return (
        bool(devices.found())  # not torch.cuda.is_available(), which may touch CUDA where NVML does not tell
        or torch.xpu.is_available()
        or torch.backends.mps.is_available()
        or torch._C._get_privateuse1_backend_name() != "privateuseone"
    )
