"""The subjects of ``replicate``: torch's composable replicate, and the exemplar."""

from __future__ import annotations

import inspect
from typing import Any

from everyrank.fixtures.exemplars.replicate import replicate
from everyrank.suites.replicate.arena import LOCAL_BUFFERS
from everyrank.suites.subject import Subject
from torch import nn
from torch.distributed._composable.replicate import replicate as torch_replicate
from torch.nn.parallel import DistributedDataParallel

EXEMPLAR = Subject("everyrank.replicate", contract="replicate", build=replicate)


def _torch(module: nn.Module, **options: Any) -> nn.Module:
    """In its own words: since torch 2.12 or so DDP warns of the old name of this option."""
    if (
        "broadcast_buffers" in options
        and "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
    ):
        options["forward_sync_buffers"] = options.pop("broadcast_buffers")
    return torch_replicate(module, **options)


#: It wraps the parameters alone, so no buffer is ever sent.
TORCH = Subject(
    "torch.replicate",
    contract="replicate",
    build=_torch,
    declares=frozenset({LOCAL_BUFFERS}),
    known="replicate.toml",
)


def _nothing(module: nn.Module, **options: Any) -> nn.Module:
    """Takes everything and does nothing."""
    module.__dict__["set_requires_gradient_sync"] = lambda requires_gradient_sync: None
    return module


NOTHING = Subject("nothing", contract="replicate", build=_nothing)
