"""Which pattern explains a tensor that deviates: all that a call knows of it is asked of the list of patterns."""

from __future__ import annotations

import torch
from everyrank.parity.judge.evidence import Witnesses
from everyrank.parity.judge.steps import Deviation
from everyrank.parity.judge.training import Pass, Training
from everyrank.parity.run.pieces import microbatch_gradients
from everyrank.suites.compare.patterns.fit import Fit
from torch.utils._pytree import tree_leaves


class Patterns:
    """The patterns of one call: the plain model's gradients of microbatches are computed once for all tensors."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._microbatches: dict[tuple[torch.dtype, int], list[dict[str, torch.Tensor]]] = {}

    def explain(self, wide: Pass, deviation: Deviation) -> Fit | None:
        """Return what has happened to a tensor that deviates in a pass."""
        training = self._training

        def pieces(name: str) -> list[list[torch.Tensor]]:
            if deviation.kind != "gradient" or deviation.step:
                return []
            counts = sorted({1, training.found.cut.pieces, training.ranks.size})
            ways = [self._pieces(wide.trace.dtype, count) for count in counts]
            return [[piece[name] for piece in way if name in piece] for way in ways]

        witnesses = Witnesses(
            training.ranks,
            wide.trace,
            training.found.groups,
            pieces,
            training.setup.microbatches,
            wide.judged[-1].rates,
            wide.judged[-1].convention,
            _tokens(training, deviation),
        )
        return witnesses.pattern(deviation)

    def _pieces(self, dtype: torch.dtype, count: int) -> list[dict[str, torch.Tensor]]:
        if (dtype, count) not in self._microbatches:
            self._microbatches[dtype, count] = microbatch_gradients(self._training.setup, dtype, count)
        return self._microbatches[dtype, count]


def _tokens(training: Training, deviation: Deviation) -> list[list[float]]:
    """Return how many tokens count on each rank that has a part of the batch's rows, for each of its tensors.

    What counts has no negative number, as a label that is ignored, or is no zero of a mask.
    """
    size, found = training.ranks.size, []
    if deviation.kind != "gradient":
        return []
    for leaf in tree_leaves(training.setup.whole_batch(deviation.step, training.truth.dtype)):
        if not isinstance(leaf, torch.Tensor) or leaf.ndim < 1 or len(leaf) % size:
            continue
        ways = [leaf >= 0, leaf != 0] if not leaf.is_complex() else []
        found += [[float(part.sum()) for part in counts.chunk(size)] for counts in ways]
    return [numbers for numbers in found if len({*numbers}) > 1]
