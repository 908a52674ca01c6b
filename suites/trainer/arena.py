"""The arena of ``trainer``: what a law has on each rank besides its player."""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass
from typing import Any

import torch
from everyrank.suites.arena.base import BaseArena
from everyrank.suites.compare.comparison import Tolerance
from everyrank.suites.compare.reference import Plan
from everyrank.suites.errors import BrokenAdapter
from everyrank.suites.trainer.batches import Microbatch
from torch import nn

#: Choices that a subject may declare: all ranks must start with equal values; register their parameters in one order;
#: and use the same parameters in a step.
TRUSTS_INIT, TRUSTS_ORDER, SAME_GRAPH, SAME_COUNT = "trusts-init", "trusts-order", "same-graph", "same-count"
#: A step puts the whole model in train().
SETS_MODES = "sets-modes"
#: The parts of a parameter go in another order than that of the ranks.
ANY_ORDER = "any-order"

#: In fp32 the sum of three ranks has an error of its own in each order, and ten steps amplify it.
CLOSE_FP32 = Tolerance(relative=1e-5)
#: LBFGS looks for the minimum twenty times a step: two orders of a sum are 1e-12 apart after two steps.
AMPLIFIED = Tolerance(relative=1e-9)

#: What a subject does after a step has returned, it does within this time (in seconds).
_A_WHILE = 0.1


@dataclass
class Arena(BaseArena):
    """The subject and the point of one case, on one rank."""

    @property
    def device(self) -> torch.device:
        return torch.device(self.world.device if self.subject.device == "cuda" else "cpu")

    @functools.cached_property
    def plain_trainer(self) -> Any:
        """A trainer of the subject as the plainest use builds it, to be asked what it has."""
        return self.subject.build(self.plain_model(), torch.optim.SGD)

    def plain_model(self) -> nn.Module:
        """Return the model of the plainest use, on this rank's device."""
        return Plan(self.size, variant="defaults").build().to(self.device)

    def plain_batch(self, trainer: Any) -> Microbatch:
        """Return the batch of the plainest use, of the part that this rank of the trainer has."""
        index, _ = getattr(trainer, "part", (self.rank, self.size))
        return Microbatch(*Plan(self.size, variant="defaults").batch(index, 1)).to(self.device)

    def check_trainer(self, trainer: Any) -> None:
        """Raise an error if what the subject has built is no trainer."""
        if not callable(getattr(trainer, "step", None)) or not callable(getattr(trainer, "parameters", None)):
            made = f"build of {self.subject.name} returned a {type(trainer).__name__}"
            raise BrokenAdapter(f"{made}, which has no step(*batches) or no parameters()")

    def wait_a_while(self) -> None:
        """Give what is still under way on any rank the time to happen."""
        time.sleep(_A_WHILE)
