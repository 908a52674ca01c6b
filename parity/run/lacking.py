"""What the gradient of an output would be if other ranks' parts of a later output gave nothing back."""

from __future__ import annotations

import torch
from everyrank.parity.run.activations import LIMIT
from everyrank.parity.run.parallel import Trace
from everyrank.parity.run.plain import BACKWARD, scale
from everyrank.parity.setup.given import SEED, Setup, seed
from everyrank.parity.setup.models import reference
from everyrank.parity.values.exact import running_in
from everyrank.parity.values.tree import local
from everyrank.parity.values.watch import Output, outputs
from everyrank.suites.compare.patterns.likeness import distance


def lacks_others(setup: Setup, trace: Trace, name: str, later: str, factor: float) -> bool:
    """Return whether this rank's gradients of a module's outputs are what its own part of a later output gives back.

    The plain model is run on the first batch, and in its backward the gradient of the later output is zero wherever
    this rank has no part of it.
    """
    seen, store = trace.seen, trace.store
    parts = {seat[1]: part for seat, part in seen.parts.items() if seat[0] == BACKWARD and seat[1][0] == later}
    wrong = {seat[1]: value for seat, value in seen.unmatched.items() if seat[0] == BACKWARD and seat[1][0] == name}
    if not parts or not wrong:
        return False
    masks: dict[Output, torch.Tensor] = {}
    for output, part in parts.items():
        whole = seen.whole[output]
        part.mark(masks.setdefault(whole, torch.zeros(store[BACKWARD, 0, whole].shape, dtype=torch.bool)))
    if all(mask.all() for mask in masks.values()):
        return False
    found = _with_masks(setup, trace, name, masks)
    for output, value in wrong.items():
        whole, expected = seen.whole[output], seen.expected_parts.get((BACKWARD, output))
        mine = expected.select(found[whole]) if expected is not None and whole in found else None
        if mine is None or mine.shape != value.shape:
            return False
        if not distance(value.double() / factor, mine.double()) <= LIMIT * scale(store, (BACKWARD, 0, whole)):
            return False
    return True


def _with_masks(
    setup: Setup, trace: Trace, name: str, masks: dict[Output, torch.Tensor]
) -> dict[Output, torch.Tensor]:
    """Return the gradients of a module's outputs, with those of others masked."""
    found: dict[Output, torch.Tensor] = {}

    def take(output: Output, gradient: torch.Tensor) -> None:
        found[output] = local(gradient).clone()

    def watcher(output: Output, value: torch.Tensor, _: bool) -> None:
        if not value.requires_grad:
            return
        if output in masks:
            value.register_hook(lambda gradient: gradient * masks[output])
        if output[0] == name:
            value.register_hook(lambda gradient: take(output, gradient))

    model = reference(setup, trace.dtype, exact=True, cast=True, prepare=lambda fresh: None)
    with running_in(trace.dtype, exact=True):
        batch = setup.whole_batch(0, trace.dtype)
        seed(SEED)
        with outputs(model.modules.items(), watcher):
            loss = setup.share_of(setup.loss(model.made, batch), 0, 1)
        loss.backward()
    return found
