"""The function `parity`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from everyrank.parity.errors import without_lines
from everyrank.parity.judge.search import Search
from everyrank.parity.judge.training import Training
from everyrank.parity.report import record
from everyrank.parity.report.findings import findings, written
from everyrank.parity.report.maps import Held
from everyrank.parity.report.report import Parted, Report
from everyrank.parity.run.plain import numbers_of
from everyrank.parity.run.truth import truth
from everyrank.parity.setup.given import Setup, Split, Step, checked, listed
from everyrank.parity.setup.known import dyed, same_model
from everyrank.parity.setup.ranks import Ranks, all_ranks
from everyrank.parity.setup.split import usual_microbatches
from torch import nn


def parity(
    *,
    model: nn.Module | Callable[[], nn.Module],
    parallelize: Callable[[nn.Module], Any],
    batch: Callable[[int], Any],
    loss: Callable[[Any, Any], Any],
    optimizer: Callable[[Any], Any] | None = None,
    step: Step | None = None,
    finish: Callable[[Any], Any] | None = None,
    split: Split | None = None,
    gradients: Literal["mean", "sum"] | None = None,
    load: Callable[[Any, dict[str, torch.Tensor]], Any] | None = None,
    rename: Callable[[str], str] | None = None,
    skip: Sequence[str] = (),
    dtypes: Sequence[torch.dtype] | None = None,
    clip: float | None = None,
    steps: int = 3,
    microbatches: int | None = None,
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
        loss: from a model and a batch to one number, the mean over the batch; or to a sum and the number by which it
            is divided, as of tokens that count: then the plain loop divides by the whole batch's number.
        optimizer: from parameters to an optimizer, or to a list of optimizers and schedulers, all of which step once
            a step; SGD with momentum by default. If its first argument is called ``named...``, it gets pairs of the
            plain model's name and the parameter, and if it is called ``model``, the model.
        step: ``step(model, optimizer, whole batch)`` trains one step on this rank and returns the loss, or the loss
            and the norm of the gradients. None stands for a plain loop.
        finish: ``finish(model)`` ends the plain loop's backward, before the optimizer's step: it reduces gradients by
            hand. If it clips them, it returns the norm.
        split: how the plain loop cuts the batch: "rows", "sequence", "none", or a function from the whole batch to
            this rank's.
        gradients: "mean" or "sum", as ranks put gradients together. By default they are averaged; those of a sum are
            summed, unless DDP or FSDP averages them.
        load: from (what parallelize returned, the plain model's state dict), for code that builds its own shards.
        rename: from a name in the parallel model to the name in the plain one.
        skip: patterns of names that are not compared.
        dtypes: the dtypes in which the ranks train besides fp64; by default the model's own.
        clip: the norm to which gradients are clipped.
        steps: how many steps are trained.
        microbatches: into how many parts the plain loop cuts a rank's rows: 2, or 3 on 2 ranks if the rows allow it,
            so that a factor is that of ranks or of microbatches.
        compared: which part of the parameters ranks must hold.
        reference: "plain", or "one rank" for code that has no plain model: what ``model`` and ``parallelize`` make in
            a world of one is trained on the whole batch. They must ask for the rank, the size and the mesh when they
            are called.
    """
    # A test's failure begins at the line that called this, and not with all that stands here.
    __tracebackhide__ = True
    try:
        setup = Setup(
            model,
            parallelize,
            batch,
            loss,
            step=step,
            finish=finish,
            split=split,
            gradients=gradients,
            load=load,
            rename=rename,
            skip=listed("skip", skip),
            dtypes=listed("dtypes", dtypes) if dtypes is not None else None,
            clip=clip,
            steps=steps,
            microbatches=2 if microbatches is None else microbatches,
            compared=compared,
            reference=reference,
        )
        setup = checked(setup, optimizer)
        with all_ranks() as ranks:
            report = _report(setup, ranks, microbatches is None)
    except Exception as error:
        if (found := without_lines(error)) is None:
            raise
        raise found from None
    if not report.passed:
        raise Parted(report)
    return report


def _report(setup: Setup, ranks: Ranks, by_size: bool) -> Report:
    """Make all runs and return what they have shown; every rank calls it at the same time.

    ``by_size`` says that the number of microbatches is chosen by that of ranks.
    """
    remarks: list[str] = []
    known = same_model(setup, ranks)
    if by_size:
        setup = replace(setup, microbatches=usual_microbatches(setup, ranks.size))
    found = dyed(setup, ranks, known)
    plain = truth(setup, ranks, known.dtype, found.cut, remarks)
    setup = replace(setup, numbers=numbers_of(plain.store, setup.steps))
    training = Training(setup, ranks, known, found, plain)
    training.check_names()
    wide = training.wide()
    clipped = training.clipped_as(wide)
    if clipped is not training:
        training, wide = clipped, clipped.wide()
    search = Search(training)
    faults = list(search.faults(wide))
    own = [(dtype, training.own(dtype, wide)) for dtype in training.dtypes()]
    named = findings(training, search.patterns, faults, own)
    shown = wide.judged[-1]
    if named and not faults:
        # The user's dtype alone deviates: its pass is shown.
        shown = next(each for _, each in own if each.deviates).judged[-1]
    elif named and named[0].step > 0:
        shown = next((each for each in wide.judged if each.step + 1 == named[0].step), shown)
    held = Held(found.holdings, training.parts, training.truth.store)
    report = replace(
        written(training, wide.judged, shown, named, remarks),
        outputs=tuple(ranks.gather(held.outputs())),
        groups=found.groups,
    )
    runs = [(training.truth.dtype, wide.judged), *((dtype, each.judged) for dtype, each in own)]
    record.note(ranks, report, runs, held)
    return report
