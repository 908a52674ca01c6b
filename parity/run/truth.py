"""The plain model's run on each host, and what rounding does to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from everyrank.parity.errors import Defect, Unusable, defect
from everyrank.parity.run.plain import Keeper, Key, Noise, play, weight_of_parts
from everyrank.parity.run.store import Shelf, Store
from everyrank.parity.setup.alone import FailedAlone
from everyrank.parity.setup.given import Setup
from everyrank.parity.setup.ranks import Ranks
from everyrank.parity.setup.split import Cut
from everyrank.parity.values.lines import with_line


@dataclass(frozen=True)
class Truth:
    """The plain model's run, and what is measured against it."""

    store: Store
    dtype: torch.dtype
    exact: bool


def counts_of_parts(setup: Setup, cut: Cut) -> list[int]:
    """Return into how many parts a step's batch is cut: by ranks, and by microbatches, too."""
    return sorted({cut.pieces, cut.pieces * setup.microbatches} - {1})


def truth(setup: Setup, ranks: Ranks, own: torch.dtype, cut: Cut, remarks: list[str]) -> Truth:
    """Run the plain model in fp64; where its code takes no fp64, in its own dtype."""
    counts = counts_of_parts(setup, cut)
    store, failure = _kept(setup, ranks, torch.float64, counts, exact=True)
    if store is not None:
        return Truth(store, torch.float64, True)
    if own == torch.float64:
        raise does_not_train(setup, failure)
    store, again = _kept(setup, ranks, own, counts, exact=False)
    if store is None:
        raise does_not_train(setup, again)
    remarks.append(f"not in fp64, which the plain model does not take: {failure}")
    return Truth(store, own, False)


def does_not_train(setup: Setup, failure: str) -> Unusable:
    """Return what is raised if there is nothing to compare with."""
    if setup.one_rank:
        return Unusable(f"your own code does not train in a world of one, with which ranks are compared: {failure}")
    return Unusable(f"the plain model does not train, in one process and without parallelize: {failure}")


def _kept(
    setup: Setup, ranks: Ranks, dtype: torch.dtype, counts: list[int], *, exact: bool
) -> tuple[Store | None, str]:
    """Run the plain model on the first rank of each host; return its values, or why there are none."""
    shelf = Shelf(ranks)
    failure: Exception | None = None
    if shelf.writer is not None:
        try:
            play(setup, Keeper(shelf.writer), dtype, exact=exact, steps=setup.steps, counts=counts)
        except Exception as error:
            failure = error
    failures = [each for each in ranks.gather(_sendable(failure)) if each is not None]
    if not failures:
        return shelf.open(), ""
    shelf.discard()
    if isinstance(failures[0], Unusable | Defect):
        raise failures[0]
    return None, str(failures[0])


def _sendable(error: Exception | None) -> Unusable | Defect | str | None:
    if error is None or isinstance(error, Unusable):
        return error
    if (found := defect(error)) is not None:
        return found
    if isinstance(error, FailedAlone):
        return f"{error.caller} raises {error}" if error.caller else str(error)
    return with_line(error)


def noise(
    setup: Setup, ranks: Ranks, truth: Truth, dtype: torch.dtype, cut: Cut, mixed: Any, steps: int
) -> dict[Key, float]:
    """Measure what rounding does to one process in a dtype.

    The batch is in one piece, or in the ranks' parts, or the weights are moved by a rounding.

    The runs are shared out among ranks.
    """
    runs = [(1, 0), *((count, 0) for count in counts_of_parts(setup, cut)), (1, 1)]
    measured = Noise(truth.store)
    for number, (parts, jitter) in enumerate(runs):
        if number % ranks.size != ranks.rank:
            continue
        weight = weight_of_parts(truth.store, parts)
        if weight is not None:
            play(
                setup, measured, mixed or dtype, exact=False, steps=steps, parts=parts, weight=weight,
                cast=mixed is not None, jitter=jitter,
            )  # fmt: skip
    errors: dict[Key, float] = {}
    for each in ranks.gather(measured.errors):
        for key, error in each.items():
            errors[key] = max(errors.get(key, 0.0), error)
    return errors


def unequal_parts(setup: Setup, truth: Truth, cut: Cut, norms: tuple[str, ...], first: str) -> tuple[str, ...]:
    """Return what a user must know whose loss is no mean of the losses of parts, and who has no step of their own.

    ``norms`` are the plain model's batch norms, and ``first`` is the first tensor that deviates.
    """
    if first in norms:
        return (
            f"`{first}` normalizes by the rows that it gets: those of a part are not the whole batch's, so ranks and "
            "microbatches train something else than one process does. Normalize over all of them, build it with "
            ".eval(), or take a norm that looks at one row",
        )
    parts = cut.pieces * setup.microbatches
    if setup.has_own_parts:
        return ()
    if weight_of_parts(truth.store, parts) is not None:
        return ()
    why = (
        "with a mean over unequal numbers of tokens: return the sum and the number of tokens from loss=. Or as with "
        "a loss over pairs of rows, or a statistic of them: gather rows over ranks, and pass microbatches=1"
    )
    if norms:
        why = f"`{norms[0]}` normalizes by the rows that it gets, unless it is built with .eval()"
    return (f"the mean of the losses of {parts} equal parts of the batch is not the whole's, as {why}",)
