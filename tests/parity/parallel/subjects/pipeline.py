"""A pipeline by hand: each rank has some of the layers, the first the embeddings and the last the head."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import nn

from tests.parity.parallel.collectives import summed
from tests.parity.parallel.subject import Batch, ByHand, Stepped
from tests.parity.parallel.transformer import Sizes


class Pipeline(ByHand):
    """GPipe: all microbatches forward, then all of them backward."""

    split = "none"
    transformer = Sizes(layers=4)
    sizes: ClassVar[tuple[int, ...]] = (2, 4)
    microbatches = 4

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def is_last(self) -> bool:
        return self.rank == self.size - 1

    def parallelize(self, model: Any) -> Any:
        """Leave this stage's modules in the model, under the names that they have."""
        model.blocks = self.own_blocks(model.blocks)
        if not self.is_first:
            model.tokens = model.positions = None
        if not self.is_last:
            model.norm = model.head = None
        return model

    def own_blocks(self, blocks: nn.ModuleDict) -> nn.ModuleDict:
        return nn.ModuleDict({name: block for name, block in blocks.items() if self.is_mine(int(name))})

    def is_mine(self, layer: int) -> bool:
        return layer // (self.transformer.layers // self.size) == self.rank

    # -- one step ---------------------------------------------------------------------------------------------------

    def accumulate(self, model: Any, batch: Batch) -> torch.Tensor:
        parts = self.cut(batch)
        inputs: dict[int, torch.Tensor] = {}
        outputs: dict[int, torch.Tensor] = {}
        for action, number in self.schedule(len(parts)):
            if action == "forward":
                inputs[number], outputs[number] = self.forward(model, parts[number], len(parts))
            else:
                self.backward(inputs[number], outputs[number])
        losses = [outputs[number].detach() for number in range(len(parts))]
        return torch.stack(losses).sum() if self.is_last else torch.zeros((), dtype=losses[0].dtype)

    def schedule(self, parts: int) -> list[tuple[str, int]]:
        return [("forward", number) for number in range(parts)] + [("backward", number) for number in range(parts)]

    def forward(self, model: Any, part: Batch, parts: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what came in, and what goes out: an activation, or a loss."""
        positions = torch.arange(part["tokens"].shape[1])
        x = model.embed(part["tokens"], positions) if self.is_first else self.receive(self.empty(model, part), -1)
        entered = x if self.is_first else x.requires_grad_()
        for block in model.blocks.values():
            x = model.through(block, x, positions, part["row"])
        if self.is_last:
            return entered, self.scaled(self.share(model.judge(x, part["labels"]), part), parts)
        self.send(x.detach(), 1)
        return entered, x

    def backward(self, entered: torch.Tensor, left: torch.Tensor) -> None:
        left.backward(None if self.is_last else self.receive(torch.empty_like(left), 1))
        if not self.is_first:
            assert entered.grad is not None
            self.send(entered.grad, -1)

    def empty(self, model: Any, part: Batch) -> torch.Tensor:
        dtype = next(model.parameters()).dtype
        return torch.empty(*part["tokens"].shape, self.transformer.width, dtype=dtype)

    def send(self, x: torch.Tensor, direction: int) -> None:
        """Send to the next stage (1) or the one before (-1)."""
        self.sent.append(dist.isend(x.contiguous(), self.rank + direction))

    def receive(self, x: torch.Tensor, direction: int) -> torch.Tensor:
        dist.recv(x, self.rank + direction)
        return x

    def train(self, model: Any, optimizer: torch.optim.Optimizer, batch: Batch) -> Stepped:
        self.sent: list[Any] = []
        stepped = super().train(model, optimizer, batch)
        for work in self.sent:
            work.wait()
        return stepped

    def report(self, loss: torch.Tensor) -> torch.Tensor:
        return summed(loss, self.parts_group)


class PipelineTied(Pipeline):
    """1F1B: each backward as soon as it can be. The head is the embedding: both ends have it, and its gradient."""

    transformer = Sizes(layers=4, tied=True)

    def schedule(self, parts: int) -> list[tuple[str, int]]:
        ahead = min(self.size - 1 - self.rank, parts)
        order = [("forward", number) for number in range(ahead)]
        for number in range(parts - ahead):
            order += [("forward", number + ahead), ("backward", number)]
        return order + [("backward", number) for number in range(parts - ahead, parts)]

    def finish(self, model: Any) -> None:
        """Add up the gradients of both ends; the stages between add nothing."""
        twin = model.tokens if self.is_first else model.head if self.is_last else None
        whole = self.transformer.vocabulary, self.transformer.width
        dtype = next(model.parameters()).dtype
        gradient = torch.zeros(whole, dtype=dtype) if twin is None else twin.weight.grad
        total = self.over_ends(gradient)
        if twin is not None:
            twin.weight.grad.copy_(total)

    def over_ends(self, gradient: torch.Tensor) -> torch.Tensor:
        return summed(gradient, self.parts_group)

    def plain_name(self, name: str) -> str:
        return "tokens.weight" if name == "head.weight" else super().plain_name(name)


class PipelineClipped(Pipeline):
    """A clip that bites, by the norm over all stages."""

    clip = 0.05

    def shrink(self, model: Any, clip: float) -> torch.Tensor:
        squares = [parameter.grad.double().square().sum() for parameter in model.parameters()]
        norm = self.over_stages(torch.stack(squares).sum()).sqrt()
        for parameter in model.parameters():
            parameter.grad.mul_((clip / (norm + 1e-6)).clamp(max=1.0).to(parameter.dtype))
        return norm

    def over_stages(self, square: torch.Tensor) -> torch.Tensor:
        return summed(square, self.parts_group)
