"""What is said of a first deviation besides its pattern: of its rank's rows, its clip, its optimizer, other ranks."""

from __future__ import annotations

import math

from everyrank.parity.judge.evidence import alike, of_all_gradients
from everyrank.parity.judge.steps import Deviation
from everyrank.parity.judge.training import Pass, Training
from everyrank.parity.run.lacking import lacks_others
from everyrank.parity.run.pieces import losses_of_pieces
from everyrank.parity.run.plain import FORWARD, NORM
from everyrank.suites.compare.patterns.fit import Fit
from everyrank.suites.compare.patterns.texts import ranks_text

#: Of how many outputs after one it is asked whether its gradient lacks what others' parts of them give back.
_NEXT = 3


def of_the_optimizer(training: Training, wide: Pass, first: Deviation, pattern: Fit | None) -> Fit | None:
    """Add what the optimizer's step shows: of which gradient it was made, or that it was made of parts."""
    if first.kind == "update":
        return _of_parts(training, wide, first) or pattern
    if first.kind != "gradient" or pattern is None:
        return pattern
    has_another = first.name in wide.trace.seen.of_others
    if not training.ranks.decide(has_another, lambda every: all(every[rank] for rank in first.ranks)):
        return pattern
    words = "before optimizer.step(), which makes its update of another gradient, and not of the plain model's"
    return Fit(pattern.id, f"{pattern.text} {words}")


def _of_parts(training: Training, wide: Pass, first: Deviation) -> Fit | None:
    """Return that an update is what the optimizer makes of each rank's part, if it is."""
    mine = first.name in wide.trace.seen.of_parts
    if not training.ranks.decide(mine, lambda every: all(every[rank] for rank in first.ranks)):
        return None
    words = "and not of the whole tensor, on which the optimizer looks at more than an element"
    return Fit("of-parts", f"is made of each rank's part of the gradient, {words}")


def lacking(training: Training, wide: Pass, first: Deviation) -> Fit | None:
    """Return that a gradient lacks what other ranks' parts of the next output give back, if it does."""
    if first.step or training.setup.one_rank or not training.truth.exact:
        return None
    order = [*dict.fromkeys(output[0] for output in training.truth.store.notes[FORWARD])]
    factor = wide.judged[-1].convention or 1.0
    for later in order[order.index(first.name) + 1 :][:_NEXT]:
        mine = training.ranks.rank in first.ranks
        lacks = mine and lacks_others(training.setup, wide.trace, first.name, later, factor)
        if training.ranks.decide(lacks, lambda every: all(every[rank] for rank in first.ranks)):
            words = f"lacks what other ranks' parts of the output of `{later}` give back"
            return Fit("lacks-others", f"{words}, on {ranks_text(first.ranks)}")
    return None


def own_mean(training: Training, pattern: Fit) -> Fit:
    """Return what is said of a loss that is another number, while all that is trained is right."""
    if training.setup.step is None:
        return pattern
    words = "while all that is trained is the plain model's, as where it is the mean over a rank's own rows"
    ways = "the mean over the whole batch, the rank's share of it (a term of a sum or a mean over ranks), or None"
    return Fit("", f"{pattern.text}, {words}: return {ways}")


def of_own_rows(training: Training, wide: Pass, first: Deviation, pattern: Fit | None) -> Fit | None:
    """Return what is said of an output or a loss that is made of a rank's own rows, and not of the batch's."""
    found = pattern or Fit("", first.differs)
    kind = "batch-statistics" if first.kind == "forward" else found.id
    if _is_of_own_rows(training, wide, first):
        return Fit(kind, f"{found.text}: each rank's loss is that of its own rows alone")
    if first.name in training.known.batch_norms:
        return Fit(kind, f"{found.text}: it normalizes by the rows that it gets")
    return None


def _is_of_own_rows(training: Training, wide: Pass, first: Deviation) -> bool:
    """Return whether the loss of each rank is what the plain model's is on that rank's rows."""
    count = training.setup.microbatches
    size = training.ranks.size
    if first.step or training.setup.step is not None or training.found.cut.pieces != size:
        return False
    losses = losses_of_pieces(training.setup, wide.trace.dtype, size * count)
    mine = losses[training.ranks.rank * count :][:count]
    loss = wide.trace.seen.loss
    is_own = loss is not None and bool(mine) and math.isclose(sum(mine) / count, loss, rel_tol=1e-6)
    return training.ranks.decide(is_own, all)


def clipped(training: Training, wide: Pass, pattern: Fit | None) -> Fit | None:
    """Return what is asked of a user with a step of their own, if one factor makes all gradients smaller."""
    trace = wide.trace
    setup, step = training.setup, wide.judged[-1].step
    if not setup.ends_by_hand or setup.clip is not None or (pattern is not None and pattern.id == "sum-for-mean"):
        return None
    factor = training.ranks.decide(of_all_gradients(trace, step), alike)
    if factor is None or factor > 1:
        return None
    norm = factor * float(trace.store[NORM, step])
    code = "step" if setup.step is not None else "finish"
    words = f"is {factor:.4g} times the plain model's, as every gradient: {code} divides by another number, or it "
    return Fit("", f"{words}clips by hand to a norm of {norm:.4g}: then pass clip={norm:.4g}")
