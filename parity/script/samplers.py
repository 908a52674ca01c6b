"""Notice a sampler that shuffles two epochs of training alike, since nobody says which epoch it is."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from everyrank.parity.values.lines import line_of_caller
from torch.optim import optimizer as optimizers
from torch.utils.data import DistributedSampler


@dataclass(frozen=True, eq=False)
class _Pass:
    """One time that a sampler is gone through."""

    sampler: DistributedSampler[Any]
    epoch: int
    line: str


def watch(find: Callable[[str], None]) -> Callable[[], None]:
    """Call the function with a sentence if an optimizer steps in two passes of one sampler in one epoch.

    A pass for the shape of a batch, or of a sampler that an evaluation has, is none of training. Return what ends the
    watch.
    """
    trained: dict[tuple[Any, int], _Pass] = {}
    drawn: list[_Pass] = []
    iterate = DistributedSampler.__iter__

    @functools.wraps(iterate)
    def watched(self: DistributedSampler[Any]) -> Iterator[Any]:
        return _noted(iterate(self), _Pass(self, self.epoch, line_of_caller()), drawn)

    def steps(*_: Any) -> None:
        for each in drawn:
            first = trained.setdefault((each.sampler, each.epoch), each)
            if first is not each:
                find(
                    f"the DistributedSampler begins a second epoch in the order of the first ({each.line}): "
                    "call sampler.set_epoch(epoch) before each"
                )

    def end() -> None:
        DistributedSampler.__iter__ = iterate  # type: ignore[method-assign]
        handle.remove()

    DistributedSampler.__iter__ = watched  # type: ignore[method-assign]
    handle = optimizers.register_optimizer_step_pre_hook(steps)
    return end


def _noted(indices: Iterator[Any], own: _Pass, drawn: list[_Pass]) -> Iterator[Any]:
    """Yield what a sampler yields, and let `drawn` have the pass from which a row was drawn last, to train."""
    for index in indices:
        if own.sampler.shuffle and torch.is_grad_enabled():
            drawn[:] = [own]
        yield index
