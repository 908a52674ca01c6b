"""The subjects of ``replicate``: torch's composable replicate, its DistributedDataParallel, and the exemplar."""

from __future__ import annotations

import inspect
from typing import Any

from everyrank.fixtures.exemplars.replicate import replicate
from everyrank.suites.arena.groups import NAMES_RANKS
from everyrank.suites.engine.subject import Lack, Subject
from everyrank.suites.replicate.arena import LOCAL_BUFFERS
from torch import nn
from torch.distributed._composable.replicate import replicate as torch_replicate
from torch.nn.parallel import DistributedDataParallel

_DECLARES = frozenset({NAMES_RANKS})

EXEMPLAR = Subject("everyrank.replicate", contract="replicate", build=replicate, declares=_DECLARES, exemplar=True)


def _renamed(options: dict[str, Any]) -> dict[str, Any]:
    """Rename an option as this torch calls it: since torch 2.12 or so, DDP warns about the old name."""
    parameters = inspect.signature(DistributedDataParallel).parameters
    names = {"broadcast_buffers": "forward_sync_buffers"} if "forward_sync_buffers" in parameters else {}
    return {names.get(name, name): value for name, value in options.items()}


def _torch(module: nn.Module, **options: Any) -> nn.Module:
    return torch_replicate(module, **_renamed(options))


#: torch's replicate wraps only the parameters, so it never sends a buffer.
TORCH = Subject(
    "torch.replicate",
    contract="replicate",
    build=_torch,
    declares=frozenset({LOCAL_BUFFERS}),
    known="replicate.toml",
    turn=0,
)


def _ddp(module: nn.Module, **options: Any) -> nn.Module:
    return DistributedDataParallel(module, **_renamed(options))


#: DDP returns a new module that wraps the given one. On CPUs its `device_ids` must be None.
DDP = Subject(
    "torch.DistributedDataParallel",
    contract="replicate",
    build=_ddp,
    lacks={
        "ignored[*]": Lack(TypeError, "there is no ignored_modules"),
        "device-id[*]": Lack(TypeError, "there is no device_id, but device_ids, a list"),
        "inputs[gpu-*]": Lack(TypeError, "there is no device_id, but device_ids, a list"),
    },
    known="ddp.toml",
    turn=1,
    # torch's replicate calls it. What differs is how modules, inputs and options are handed over.
    variant_of=TORCH,
    touches=(
        "parity.submodules",
        "parity.options",
        "ignored",
        "inputs",
        "device-id",
        "buffers",
        "state-dict",
        "rewrap",
        "layout",  # torch's replicate makes its DDP in the first forward, so that it has the strides of then
        "crossings",
    ),
)


def _nothing(module: nn.Module, **options: Any) -> nn.Module:
    """Accept every option and do nothing."""
    module.__dict__["set_requires_gradient_sync"] = lambda requires_gradient_sync: None
    return module


NOTHING = Subject("nothing", contract="replicate", build=_nothing)
