"""The function `handover`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch.distributed as dist
from everyrank.parity.errors import Unusable, without_lines
from everyrank.parity.handed.given import Pair, State, factory
from everyrank.parity.handed.judge import judged
from everyrank.parity.handed.report import Handover, Unlike
from everyrank.parity.setup.given import listed
from everyrank.parity.setup.ranks import Ranks, all_ranks
from torch import nn


def handover(
    *,
    model: nn.Module | Callable[[], nn.Module],
    other: nn.Module | Callable[[], nn.Module],
    inputs: Any,
    convert: Callable[[State], State] | None = None,
    transfer: Callable[[nn.Module, nn.Module], Any] | None = None,
    forward: Callable[[Any, Any], Any] | None = None,
    other_forward: Callable[[Any, Any], Any] | None = None,
    rename: Callable[[str], str] | None = None,
    skip: Sequence[str] = (),
) -> Handover:
    """Hand a model's weights over to another module, and see that it is the same model; raise `Unlike` if not.

    Each element of the weights is traced through the converter, and the outputs are compared position by position, in
    fp64. Without a process group it runs in this process; with one, every rank calls it, and the other module may be
    parallel.

    Args:
        model: the module whose weights are handed over, or a function that builds it: a trainer's, say.
        other: the module that gets them, or a function that builds it: that of a rollout engine, say.
        inputs: what both are run on: an argument, a tuple of these, or a dictionary of named arguments.
        convert: from the model's state dict to the other's. By default it is loaded as it is.
        transfer: ``transfer(model, other)`` hands the weights over instead, by whatever way; it may return the other.
        forward: ``forward(module, inputs)`` returns the outputs, such as logits; by default the module is called.
        other_forward: the same for the other module, if it is called in another way.
        rename: from a module's name in the other to its name in the model, to name the first that parts.
        skip: patterns of names of the model's tensors that the other has no use of.
    """
    __tracebackhide__ = True
    try:
        if convert is not None and transfer is not None:
            raise Unusable("transfer= stands for convert= and for loading what it returns: leave one of them out.")
        pair = Pair(
            factory(model, "model"), factory(other, "other"), inputs, convert, transfer, forward, other_forward,
            rename, listed("skip", skip),
        )  # fmt: skip
        with _ranks() as ranks:
            report = judged(pair, ranks)
    except Exception as error:
        if (found := without_lines(error)) is None:
            raise
        raise found from None
    if not report.passed:
        raise Unlike(report)
    return report


@contextlib.contextmanager
def _ranks() -> Iterator[Ranks | None]:
    """Yield the ranks of this call; None if this process belongs to no group."""
    if not (dist.is_available() and dist.is_initialized()):
        yield None
        return
    with all_ranks() as ranks:
        yield ranks
