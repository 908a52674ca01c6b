"""What a parallel subject is: a model, the code that makes it parallel, batches, a loss, and how a step is done.

Each decision is a method of its own, so that a rogue is a subject with one method changed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from fnmatch import fnmatch
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from tests.parity.parallel.collectives import gathered, summed
from tests.parity.parallel.parts import IGNORED
from tests.parity.parallel.transformer import Sizes, Transformer

Batch = dict[str, torch.Tensor]
#: What a step returns: the loss, and the norm if it clips.
Stepped = torch.Tensor | tuple[torch.Tensor, torch.Tensor]
#: What is read of a parameter: itself, or its gradient.
Pick = Callable[[torch.Tensor], torch.Tensor | None]


class Parallel:
    """A subject on one rank of a world whose process group is up. The reference has its ``model`` and ``loss``.

    A subject without a ``step`` is trained by the plain loop, which is ``train``, and may end its backward by hand.
    """

    #: The worlds that it can be cut for.
    sizes: ClassVar[tuple[int, ...]] = (2, 3, 4)
    #: The dtypes in which training it is training the plain model, but for rounding.
    dtypes: ClassVar[tuple[str, ...]] = ("float64", "float32", "bfloat16")
    #: "rows" if each rank trains on its rows of the batch, "none" if every rank gets the whole batch.
    split: ClassVar[str] = "rows"
    clip: ClassVar[float | None] = None
    #: What the clip adds to the norm.
    epsilon: ClassVar[float] = 1e-6
    #: Whether gradients are what they should be once the optimizer has stepped, and not before.
    reduces_in_step: ClassVar[bool] = False
    microbatches: ClassVar[int] = 2
    transformer: ClassVar[Sizes] = Sizes()
    rows: ClassVar[int] = 24
    length: ClassVar[int] = 12
    #: The parameters of which each rank holds a part, by pattern, and the dimension that is cut.
    cuts: ClassVar[Mapping[str, int]] = {}

    def __init__(self) -> None:
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        #: The ranks that hold the parts of one model, and those that hold the same part.
        self.parts_group: Any = dist.group.WORLD
        self.replicas_group: Any = dist.group.WORLD

    def close(self) -> None:
        """Destroy the groups that the subject has made."""
        for group in self.made_groups():
            if group is not dist.group.WORLD:
                dist.destroy_process_group(group)

    def made_groups(self) -> list[Any]:
        return []

    # -- what parity takes ------------------------------------------------------------------------------------------

    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments of ``parity``."""
        names = ("model", "parallelize", "batch", "loss", "optimizer", "split", "clip", "microbatches")
        found = {name: getattr(self, name) for name in names}
        if (step := getattr(self, "step", None)) is not None:
            return {**found, "step": step}
        if type(self).mine is not Parallel.mine:
            found["split"] = self.mine
        if type(self).finish is not Parallel.finish or type(self).shrink is not Parallel.shrink:
            found["finish"] = self.finished
        return found

    def finished(self, model: Any) -> torch.Tensor | None:
        """Reduce and clip by hand; return the norm, if it clips."""
        self.finish(model)
        is_own = type(self).shrink is not Parallel.shrink
        return self.shrink(model, self.clip) if self.clip is not None and is_own else None

    def model(self) -> nn.Module:
        return Transformer(self.transformer)

    def parallelize(self, model: Any) -> Any:
        """Return this rank's module, or the module and its optimizer."""
        raise NotImplementedError

    def batch(self, step: int) -> Batch:
        """Return a batch of rows with unequal numbers of tokens, of which the last three have none."""
        generator = torch.Generator().manual_seed(1000 + step)
        tokens = torch.randint(self.transformer.vocabulary, (self.rows, self.length + 1), generator=generator)
        rows = torch.arange(self.rows)
        lengths = self.valid(rows)
        labels = tokens[:, 1:].masked_fill(torch.arange(self.length) >= lengths[:, None], IGNORED)
        total = lengths.sum().expand(self.rows).clone()
        return {"tokens": tokens[:, :-1].clone(), "labels": labels, "row": rows + step * self.rows, "total": total}

    def valid(self, rows: torch.Tensor) -> torch.Tensor:
        """Return how many tokens of each row count."""
        lengths = 2 + rows * 7 % (self.length - 1)
        return torch.where(rows < self.rows - 3, lengths, 0)

    def loss(self, model: Any, batch: Batch) -> torch.Tensor:
        """Return a part's share of the mean over the whole batch's tokens: the mean over equal parts is that mean."""
        losses = model(batch["tokens"], batch["labels"], batch["row"])
        return self.share(losses, batch)

    def share(self, losses: torch.Tensor, batch: Batch) -> torch.Tensor:
        return losses.sum() * (self.rows / len(losses)) / batch["total"][0]

    def optimizer(self, params: Iterable[Any]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(params, lr=1e-2, weight_decay=0.1)

    # -- a step -----------------------------------------------------------------------------------------------------

    def train(self, model: Any, optimizer: torch.optim.Optimizer, batch: Batch) -> Stepped:
        loss = self.accumulate(model, batch)
        self.finish(model)
        norm = None if self.clip is None else self.shrink(model, self.clip)
        optimizer.step()
        optimizer.zero_grad()
        loss = self.report(loss)
        return loss if norm is None else (loss, norm)

    def accumulate(self, model: Any, batch: Batch) -> torch.Tensor:
        """Add up the gradients of all microbatches, and return their loss."""
        parts = self.cut(self.mine(batch))
        total = torch.zeros(())
        for number, part in enumerate(parts):
            with self.backward_context(model, number == len(parts) - 1):
                loss = self.scaled(self.loss(model, part), len(parts))
                loss.backward()
            total = total + loss.detach()
        return total

    def mine(self, batch: Batch) -> Batch:
        """Return this rank's rows."""
        if self.split == "none":
            return batch
        return {key: value.chunk(self.size)[self.rank] for key, value in batch.items()}

    def cut(self, batch: Batch) -> list[Batch]:
        """Return the microbatches."""
        chunks = {key: value.chunk(self.microbatches) for key, value in batch.items()}
        return [{key: parts[number] for key, parts in chunks.items()} for number in range(self.microbatches)]

    def scaled(self, loss: torch.Tensor, parts: int) -> torch.Tensor:
        return loss / parts

    def backward_context(self, model: Any, is_last: bool) -> AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def finish(self, model: Any) -> None:
        """Reduce what the backward has left."""

    def shrink(self, model: Any, clip: float) -> torch.Tensor:
        """Clip the gradients, and return their norm."""
        norm = nn.utils.clip_grad_norm_(model.parameters(), clip)
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    def report(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the whole batch's loss."""
        return loss if self.split == "none" else summed(loss, self.replicas_group) / self.size

    # -- what a rank holds ------------------------------------------------------------------------------------------

    def dim(self, name: str) -> int | None:
        """Return the dimension along which the parameter of a name is cut."""
        return next((dim for pattern, dim in self.cuts.items() if fnmatch(name, pattern)), None)

    def whole(self, module: nn.Module, pick: Pick) -> dict[str, torch.Tensor]:
        """Return, by the plain model's names, what is picked of each parameter; cut ones are put together."""
        found = {}
        for name, parameter in module.named_parameters():
            value = pick(parameter)
            if value is not None:
                found[self.plain_name(name)] = self.uncut(self.plain_name(name), value.detach())
        return found

    def uncut(self, name: str, value: torch.Tensor) -> torch.Tensor:
        if isinstance(value, DTensor):
            return value.full_tensor()
        dim = self.dim(name)
        return value.clone() if dim is None else gathered(value, dim, self.parts_group)

    def plain_name(self, name: str) -> str:
        return name.removeprefix("module.")


class Summed(Parallel):
    """A subject whose losses are this rank's part of the mean, and whose gradients are sums over ranks."""

    def share(self, losses: torch.Tensor, batch: Batch) -> torch.Tensor:
        is_whole = len(losses) == self.rows
        return super().share(losses, batch) / (1 if is_whole else self.size)

    def report(self, loss: torch.Tensor) -> torch.Tensor:
        return summed(loss, self.replicas_group)


class ByHand(Parallel):
    """A subject with a step of its own."""

    def step(self, model: Any, optimizer: torch.optim.Optimizer, batch: Batch) -> Stepped:
        return self.train(model, optimizer, batch)
