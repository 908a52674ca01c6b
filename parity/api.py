"""The function `parity`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from everyrank.parity import call
from everyrank.parity.errors import Parted, Unusable
from everyrank.parity.ranks import all_ranks
from everyrank.parity.report import Report
from everyrank.parity.setup import Setup, Split, Step, checked, listed
from torch import nn


def parity(
    *,
    model: nn.Module | Callable[[], nn.Module],
    parallelize: Callable[[nn.Module], Any],
    batch: Callable[[int], Any],
    loss: Callable[[Any, Any], Any],
    optimizer: Callable[[Iterable[nn.Parameter]], Any] | None = None,
    step: Step | None = None,
    split: Split | None = None,
    load: Callable[[Any, dict[str, torch.Tensor]], Any] | None = None,
    rename: Callable[[str], str] | None = None,
    skip: Sequence[str] = (),
    dtypes: Sequence[torch.dtype] | None = None,
    clip: float | None = None,
    steps: int = 3,
    microbatches: int = 2,
    compared: float = 0.9,
    reference: Literal["plain", "one rank"] = "plain",
) -> Report:
    """Train a model on all ranks and in one process, and compare: raise `Parted` at the first tensor that differs.

    Every rank calls it. The reference is the plain model: the loss of the whole batch, its backward, the optimizer's
    step. The ranks train what ``parallelize`` returns, with ``step`` or with a plain loop over microbatches, first in
    fp64 and then in the model's own dtype.

    Args:
        model: a function that builds the plain model, or the model; it is copied.
        parallelize: from a fresh copy of the plain model to this rank's module, a stage, a list of them, or
            (one of these, its optimizer). It is called once for each run.
        batch: from the number of a step to the whole batch, a nested container of tensors.
        loss: from a model and a batch to one number, the mean over the batch.
        optimizer: from parameters to an optimizer; SGD with momentum by default.
        step: ``step(model, optimizer, whole batch)`` trains one step on this rank and returns the loss, or the loss
            and the norm of the gradients. None stands for a plain loop.
        split: how the plain loop cuts the batch: "rows", "none", or a function from the whole batch to this rank's.
        load: from (what parallelize returned, the plain model's state dict), for code that builds its own shards.
        rename: from a name in the parallel model to the name in the plain one.
        skip: patterns of names that are not compared.
        dtypes: the dtypes in which the ranks train besides fp64; by default the model's own.
        clip: the norm to which gradients are clipped.
        steps: how many steps are trained.
        microbatches: into how many parts the plain loop cuts a rank's rows.
        compared: which part of the parameters ranks must hold.
        reference: "plain", or "one rank" for code that has no plain model: what ``model`` and ``parallelize`` make in
            a world of one is trained on the whole batch. They must ask for the rank, the size and the mesh when they
            are called.
    """
    # A test's failure begins at the line that called this, and not with all that stands here.
    __tracebackhide__ = True
    try:
        setup = Setup(
            model if callable(model) and not isinstance(model, nn.Module) else (lambda: model),
            parallelize,
            batch,
            loss,
            step=step,
            split=split,
            load=load,
            rename=rename,
            skip=listed("skip", skip),
            dtypes=listed("dtypes", dtypes) if dtypes is not None else None,
            clip=clip,
            steps=steps,
            microbatches=microbatches,
            compared=compared,
            reference=reference,
        )
        if optimizer is not None:
            setup = replace(setup, optimizer=optimizer)
        setup = checked(setup, model)
        with all_ranks() as ranks:
            report = call.report(setup, ranks)
    except Unusable as unusable:
        # What is to be written instead is in its text, and nothing in the lines that found it out.
        raise unusable.with_traceback(None) from None
    if not report.passed:
        raise Parted(report)
    return report
