"""What a subject of ``replicate`` may lack: options of ``build``, backwards without sync, and sparse gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from everyrank.suites.compare.reference import Plan
from everyrank.suites.engine.capability import REFUSALS, Capability
from everyrank.suites.replicate.arena import Arena, check_can_be_unsynced
from everyrank.suites.replicate.wrappers import PREFIXED
from torch import nn


def _option(name: str, value: Callable[[nn.Module], Any]) -> Callable[[Arena], object]:
    def use(arena: Arena) -> None:
        module = Plan(arena.size).build()
        try:
            arena.subject.build(module, **{name: value(module)})
        except TypeError as error:
            if name in str(error):
                raise

    return use


def _without_sync(arena: Arena) -> None:
    check_can_be_unsynced(arena.subject.build(Plan(arena.size).build()))


CAPABILITIES = (
    Capability(
        "ignored_modules",
        ("ignored[*]",),
        _option("ignored_modules", lambda module: [next(module.children())]),
        text="build takes ignored_modules, which each rank keeps for itself",
    ),
    Capability(
        "device_id",
        ("device-id[cpu-*]", "device-id[*]", "inputs[gpu-*]"),
        _option("device_id", lambda module: torch.device("cpu")),
        text="build takes device_id, an int or a torch.device",
    ),
    Capability(
        "broadcast_buffers",
        ("buffers[asked-*]", "buffers[refused-*]"),
        _option("broadcast_buffers", lambda module: True),
        text="build takes broadcast_buffers, and leaves each rank its own buffers if it is False",
    ),
    Capability(
        "no_sync",
        (
            "accumulate[parts*]",
            *(f"accumulate[{label}-*]" for label in ("bucket-view", "static-graph", "sparse", "local")),
            "unused[cleared-*]",
        ),
        _without_sync,
        text="the module has set_requires_gradient_sync(on) or no_sync(), for a backward without communication",
    ),
    Capability(
        "local-keys",
        tuple(f"state-dict[{model}-*]" for model in ("buffers", "tied", "plain")),
        text="the state dict of a wrapper has the keys of the module that was given to build, without a prefix",
        seen=PREFIXED,
    ),
    Capability(
        "sparse",
        ("mean[*sparse*]", "accumulate[sparse-*]", "parity.train[SparseAdam-*]"),
        text="gradients may be sparse",
        words=("sparse",),
        refusals=(*REFUSALS, RuntimeError, ValueError),
    ),
)
