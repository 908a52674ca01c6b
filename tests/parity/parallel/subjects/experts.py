"""Experts over ranks by hand: each rank has its rows and some of the experts, and tokens travel by all_to_all."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from tests.parity.parallel.collectives import Exchange, gathered, summed
from tests.parity.parallel.parts import Experts
from tests.parity.parallel.subject import Batch, Parallel
from tests.parity.parallel.transformer import Sizes


class SpreadExperts(Experts):
    """Some of the experts. A module of the plain model becomes this one by its class."""

    group: Any

    def compute(self, x: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        """Send tokens, which are sorted by expert, to the ranks of their experts, and return what these answer."""
        counts = torch.bincount(numbers, minlength=self.count).view(dist.get_world_size(self.group), -1)
        others = self.counts_of_others(counts)
        sent, received = counts.sum(1).tolist(), others.sum(1).tolist()
        inputs: torch.Tensor = Exchange.apply(x, sent, received, self.group)
        answers: torch.Tensor = Exchange.apply(self.answer(inputs, others), received, sent, self.group)
        return answers

    def counts_of_others(self, counts: torch.Tensor) -> torch.Tensor:
        """Return how many tokens each rank has for each expert of this rank."""
        everything = gathered(counts[None], 0, self.group)
        return everything[:, dist.get_rank(self.group)]

    def answer(self, inputs: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Have each expert answer its tokens, which came sorted by rank and then by expert."""
        own = torch.arange(counts.shape[1]).repeat(len(counts)).repeat_interleave(counts.flatten())
        order = own.argsort(stable=True)
        parts = inputs[order].split(counts.sum(0).tolist())
        answers = torch.cat([expert(part) for expert, part in zip(self.experts.values(), parts, strict=True)])
        return self.restore(answers, order)

    def restore(self, answers: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        """Bring answers back into the order in which the tokens came."""
        return answers[order.argsort()]


class ExpertParallel(Parallel):
    """Rows and experts over ranks. What all ranks have is averaged; an expert's gradient is a sum already."""

    transformer = Sizes(experts=12)
    dtypes = ("float64", "float32")  # in bfloat16, a token may go to another expert
    experts: type[SpreadExperts] = SpreadExperts

    def parallelize(self, model: Any) -> Any:
        for block in model.blocks.values():
            block.mlp.__class__ = self.experts
            block.mlp.group = self.parts_group
            block.mlp.experts = nn.ModuleDict(
                {name: expert for name, expert in block.mlp.experts.items() if self.is_mine(int(name))}
            )
        return model

    def is_mine(self, number: int) -> bool:
        return number // (self.transformer.experts // self.size) == self.rank

    def loss(self, model: Any, batch: Batch) -> torch.Tensor:
        return super().loss(model, batch) + self.auxiliary(model)

    def auxiliary(self, model: Any) -> torch.Tensor:
        return 0.1 * torch.stack([block.mlp.auxiliary for block in model.blocks.values()]).sum()

    def finish(self, model: nn.Module) -> None:
        for name, parameter in model.named_parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            reduce = self.of_an_expert if ".experts." in name else self.over_ranks
            parameter.grad.copy_(reduce(parameter.grad))

    def over_ranks(self, gradient: torch.Tensor) -> torch.Tensor:
        return summed(gradient, self.replicas_group) / self.size

    def of_an_expert(self, gradient: torch.Tensor) -> torch.Tensor:
        return gradient / self.size
