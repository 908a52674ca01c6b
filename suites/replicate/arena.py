"""The arena of ``replicate``: on each rank it lets the subject build a module, and looks inside."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from everyrank.suites.arena.base import BaseArena
from everyrank.suites.arena.subject_errors import subject_acts
from everyrank.suites.compare.reference import sum_in_order
from everyrank.suites.errors import BrokenAdapter
from everyrank.suites.replicate.wrappers import Wrappers, names_of
from torch import nn

#: A choice that a subject may declare: each rank keeps its own buffers.
LOCAL_BUFFERS = "local-buffers"


@dataclass
class Arena(BaseArena):
    """The subject and the point of one case, and what the laws do with them, on one rank."""

    wrappers: Wrappers = field(default_factory=Wrappers)

    def build(self, module: nn.Module, **options: Any) -> nn.Module:
        """Let the subject build on a module; return that module or its wrapper. Let its errors pass."""
        names = names_of(module)
        built = self.subject.build(module, **options)
        if not isinstance(built, nn.Module):
            raise BrokenAdapter(f"build of {self.subject.name} returned a {type(built).__name__}, not a module")
        self.wrappers.add(built, module, names, self.subject.name)
        return built

    def inside(self, module: nn.Module) -> nn.Module:
        """Return the module that has the local names: the one that `build` returned, or the one inside it."""
        return self.wrappers.inside(module)

    def mean(self, value: torch.Tensor) -> torch.Tensor:
        """Return the mean over ranks, computed by the kit in rank order."""
        parts = [torch.empty_like(value) for _ in range(self.size)]
        dist.all_gather(parts, value)
        return sum_in_order(parts) / self.size


@contextlib.contextmanager
def unsynced(module: Any) -> Iterator[None]:
    """Turn communication off for forward and backward, by the method of torch's replicate or by that of DDP."""
    if callable(getattr(module, "set_requires_gradient_sync", None)):
        module.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            module.set_requires_gradient_sync(True)
    elif callable(getattr(module, "no_sync", None)):
        with module.no_sync():
            yield
    else:
        with subject_acts():
            check_can_be_unsynced(module)


def check_can_be_unsynced(module: Any) -> None:
    """Raise an AttributeError, which a subject may declare as a lack, if communication cannot be turned off."""
    if not any(callable(getattr(module, name, None)) for name in ("set_requires_gradient_sync", "no_sync")):
        kind = type(module).__name__
        raise AttributeError(f"the module, a {kind}, has neither set_requires_gradient_sync(on) nor no_sync()")


def dense(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.to_dense() if gradient.is_sparse else gradient
