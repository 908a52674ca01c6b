"""The plain model on the pieces of a batch that ranks and microbatches have."""

from __future__ import annotations

import contextlib

import torch
from everyrank.parity.setup.alone import FailedAlone, Take, in_lone_world
from everyrank.parity.setup.given import Setup
from everyrank.parity.setup.models import reference
from everyrank.parity.values.dye import MOST
from everyrank.parity.values.exact import running_in
from everyrank.parity.values.tree import local, rows, rows_of


def microbatch_gradients(setup: Setup, dtype: torch.dtype, pieces: int) -> list[dict[str, torch.Tensor]]:
    """Return the gradients of each microbatch of the first step, which add up to the step's if the loss is a mean.

    Each of this many pieces of the batch is cut into microbatches, and those of one number belong together.
    """
    found: list[dict[str, torch.Tensor]] = []
    with contextlib.suppress(FailedAlone, _TakesNoPart):
        if setup.one_rank:
            in_lone_world(lambda give: _microbatches(setup, dtype, pieces, give), found.append)
        else:
            _microbatches(setup, dtype, pieces, found.append)
    return found if len(found) == setup.microbatches else []


def losses_of_pieces(setup: Setup, dtype: torch.dtype, count: int) -> list[float]:
    """Return the loss of each of this many pieces of the first step's batch; nothing if it takes no pieces."""
    found: list[float] = []
    with contextlib.suppress(FailedAlone, _TakesNoPart):
        if setup.one_rank:
            in_lone_world(lambda give: _losses(setup, dtype, count, give), found.append)
        else:
            _losses(setup, dtype, count, found.append)
    return found if len(found) == count else []


def _losses(setup: Setup, dtype: torch.dtype, count: int, give: Take) -> None:
    exact = dtype == torch.float64
    model = reference(setup, dtype, exact=exact, cast=True, prepare=lambda fresh: None)
    with running_in(dtype, exact=exact), torch.no_grad():
        batch = setup.whole_batch(0, dtype)
        for number in range(count if rows_of(batch) % count == 0 else 0):
            try:
                loss = setup.loss(model.made, rows(batch, number, count))
            except Exception as error:
                raise _TakesNoPart from error
            give(float(local(loss if isinstance(loss, torch.Tensor) else loss[0] / loss[1])))


class _TakesNoPart(Exception):
    """What has the whole batch's shape takes no part of it."""


def _microbatches(setup: Setup, dtype: torch.dtype, pieces: int, give: Take) -> None:
    count, exact = setup.microbatches, dtype == torch.float64
    model = reference(setup, dtype, exact=exact, cast=True, prepare=lambda fresh: None)
    with running_in(dtype, exact=exact):
        batch = setup.whole_batch(0, dtype)
        for number in range(count if rows_of(batch) % (count * pieces) == 0 else 0):
            for piece in range(pieces):
                part = rows(batch, piece * count + number, pieces * count)
                try:
                    setup.share_of(setup.loss(model.made, part), 0, count * pieces).backward()
                except Exception as error:
                    raise _TakesNoPart from error
            gradients = [(name, each.grad) for name, each in model.parameters.items() if each.grad is not None]
            give({name: local(gradient).reshape(-1)[:MOST].clone() for name, gradient in gradients})
            for each in model.parameters.values():
                each.grad = None
