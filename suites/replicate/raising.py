"""A backward that raises on all ranks: when it makes sense, and what is known after it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from everyrank.fixtures.failing import InjectedError
from everyrank.suites.moves.move import NEVER
from everyrank.suites.replicate.arena import unsynced
from everyrank.suites.replicate.outline import Outline
from everyrank.suites.replicate.sides import Sides
from torch import nn


def raising_needs(outline: Outline, synced: bool = True) -> Iterator[str]:
    yield "backwards that raised"
    if not synced:
        yield "backwards without sync"
    if outline.pending or outline.unsynced or outline.quiet:
        yield NEVER  # what was accumulated before would be gone, and buffers of a forward without sync are no matter


def raised(outline: Outline, synced: bool = True) -> None:
    """Note that a backward has raised, and that all gradients were cleared."""
    outline.quiet = not synced
    outline.cleared |= not synced


def backward_that_raises(
    sides: Sides, layer: nn.Module, rows: torch.Tensor, targets: torch.Tensor, synced: bool
) -> None:
    """Run a backward that raises where it reaches this layer: out of the block without sync, if not ``synced``."""
    handle = layer.register_forward_hook(_raising)
    try:
        with contextlib.ExitStack() as stack:
            for replica in [] if synced else sides.replicas:
                stack.enter_context(unsynced(replica))
            with sides.acting():
                loss = sides.loss(rows, targets, (), "")
            loss.backward()
    finally:
        handle.remove()


def _raising(layer: nn.Module, args: Any, output: torch.Tensor) -> None:
    def fail(gradient: torch.Tensor) -> None:
        raise InjectedError("in backward")

    output.register_hook(fail)
