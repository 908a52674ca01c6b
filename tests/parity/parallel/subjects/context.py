"""Context parallelism by hand: each rank has a part of every sequence, and gathers all keys and values."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from tests.parity.parallel.collectives import GatherForParts, gathered, summed
from tests.parity.parallel.models import TurningCore, Turns, turned, with_core
from tests.parity.parallel.parts import attend
from tests.parity.parallel.subject import Parallel
from tests.parity.parallel.transformer import Core


class GatheringCore(Core):
    """Attend with this rank's queries to all ranks' keys and values."""

    def __init__(self, group: Any) -> None:
        super().__init__()
        self.group = group

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return attend(q, self.all_of(k), self.all_of(v), positions, self.key_positions(positions))

    def all_of(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = GatherForParts.apply(x, 2, self.group)
        return out

    def key_positions(self, positions: torch.Tensor) -> torch.Tensor:
        return gathered(positions, 0, self.group)


class Context(Parallel):
    """Contiguous parts of the sequence. A rank's loss is its part of the mean; gradients are added up."""

    split = "none"
    core: type[GatheringCore] = GatheringCore

    def parallelize(self, model: Any) -> Any:
        for block in model.blocks.values():
            block.attention.core = self.core(self.parts_group)
        model.register_forward_pre_hook(self.enter)
        return model

    def enter(self, model: Any, args: Any) -> Any:
        """Replace the model's arguments by this rank's part of them."""
        tokens, labels, rows = args
        chosen = self.chosen(tokens.shape[1])
        return tokens[:, chosen], self.labels(labels, chosen), rows, self.positions(chosen)

    def chosen(self, length: int) -> torch.Tensor:
        """Return which of the sequence's tokens this rank has."""
        return torch.arange(length).chunk(self.size)[self.rank]

    def labels(self, labels: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        return labels[:, chosen]

    def positions(self, chosen: torch.Tensor) -> torch.Tensor:
        return chosen

    def finish(self, model: nn.Module) -> None:
        for name, parameter in model.named_parameters():
            if self.is_reduced(name):
                assert parameter.grad is not None
                parameter.grad = self.over_parts(parameter.grad)

    def is_reduced(self, name: str) -> bool:
        return True

    def over_parts(self, gradient: torch.Tensor) -> torch.Tensor:
        return summed(gradient, self.parts_group)

    def report(self, loss: torch.Tensor) -> torch.Tensor:
        return summed(loss, self.parts_group)


class ContextZigzag(Context):
    """Each rank has a part from the front and its mirror from the back, so that all have as much to attend to."""

    length = 24

    def chosen(self, length: int) -> torch.Tensor:
        parts = torch.arange(length).chunk(2 * self.size)
        return torch.cat([parts[self.rank], parts[2 * self.size - 1 - self.rank]])


class TurningGatheringCore(GatheringCore):
    """Queries and keys are turned by their positions in the whole sequence before keys are gathered."""

    def __init__(self, group: Any) -> None:
        super().__init__(group)
        self.turns = Turns()

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        turns = self.turns(positions, self.whole_length(len(positions)))
        return super().forward(turned(q, turns), turned(k, turns), v, positions)

    def whole_length(self, mine: int) -> int:
        return mine * dist.get_world_size(self.group)


class ContextTurning(Context):
    """Rotary positions, as fast as the whole sequence is long: their table has no rows."""

    sizes = (2, 3)
    core = TurningGatheringCore

    def model(self) -> nn.Module:
        return with_core(self.transformer, TurningCore)
