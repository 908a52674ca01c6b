"""The reference of a script of ``replicate``: plain models of all ranks, in each process.

It needs no communication: if a backward is synced, each model gets the mean of their gradients. That is the gradient
of the whole batch, since the loss counts each row the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from everyrank.suites.compare.reference import mean
from everyrank.suites.replicate.arena import dense
from everyrank.suites.replicate.model import loss
from torch import nn

#: How far a mean may be off, relative to the largest gradient in it: the order of a sum may differ.
_OFF = {
    torch.float64: 1e-12,
    torch.complex128: 1e-12,
    torch.float32: 1e-6,
    torch.complex64: 1e-6,
    torch.float16: 2**-9,
    torch.bfloat16: 2**-6,
}


class Twins:
    """Models with the values that replicas must have: rank 0's, but for what is not replicated."""

    def __init__(self, models: Sequence[nn.Module], ignored: Callable[[str], bool], local_buffers: bool) -> None:
        self.models, self.ignored, self.local_buffers = models, ignored, local_buffers
        first, *others = models
        for twin in others:
            for name, parameter in twin.named_parameters():
                if not ignored(name):
                    parameter.data.copy_(first.get_parameter(name).data)
        self.touched: list[set[str]] = [set() for _ in models]
        self.scales: dict[str, float] = {}
        """For each mean of the last backward, the largest gradient in it."""
        self.left: set[str] = set()
        """Parameters that no loss has used, whose gradients differ between ranks, since they were set by hand."""
        self.send_buffers()

    def send_buffers(self) -> None:
        """Give all models rank 0's buffers, as a forward must, unless buffers stay local."""
        if not self.local_buffers:
            first, *others = self.models
            for twin in others:
                for name, buffer in twin.named_buffers():
                    buffer.copy_(first.get_buffer(name))

    def train(self, parts: Sequence[tuple[torch.Tensor, torch.Tensor]], skips: Sequence[tuple[int, ...]]) -> None:
        """Run a backward on the model of each rank, with that rank's part of the batch and unused parameters."""
        for rank, twin in enumerate(self.models):
            rows, targets = parts[rank]
            before = {name: parameter.grad for name, parameter in twin.named_parameters()}
            for parameter in twin.parameters():
                parameter.grad = None
            loss(twin(rows, skips=skips[rank]), targets).backward()
            for name, parameter in twin.named_parameters():
                mine, earlier = parameter.grad, before[name]
                if mine is not None:
                    self.touched[rank].add(name)
                    mine = mine.coalesce() if mine.is_sparse else mine
                parameter.grad = mine if earlier is None else earlier if mine is None else earlier + mine

    def average(self) -> None:
        """Average the gradients of each parameter that any rank has used since the last time."""
        self.scales = {}
        used = set().union(*self.touched)
        first = self.models[0]
        self.left = {name for name, parameter in first.named_parameters() if parameter.requires_grad} - used
        for name in used:
            parameters = [twin.get_parameter(name) for twin in self.models]
            if self.ignored(name) or not parameters[0].requires_grad:
                continue
            parts = [parameter.grad for parameter in parameters]
            sizes = [float(dense(part).abs().max()) for part in parts if part is not None and part.numel()]
            self.scales[name] = max(sizes, default=0.0)
            self._give(name, _mean(parts))
        self.touched = [set() for _ in self.models]

    def let_average(self, name: str, mine: torch.Tensor, bound: float) -> None:
        """Average the gradients of a parameter that no loss has used, if the subject has done so.

        No contract says what happens to what a rank has set by hand: it may stay, or take part in the mean.
        """
        parts = [twin.get_parameter(name).grad for twin in self.models]
        if all(part is not None and part.shape == mine.shape for part in parts):
            found = _mean(parts)
            if found is not None and self.close(name, dense(mine), dense(found), bound):
                self._give(name, found)

    def close(self, name: str, mine: torch.Tensor, wanted: torch.Tensor, bound: float) -> bool:
        """Return whether a gradient differs by no more than the order of a sum, or by the subject's bound."""
        if not wanted.numel():
            return True
        allowed = max(_OFF[wanted.dtype], bound)
        off = float((mine - wanted).abs().max())
        return off <= allowed * max(self.scales.get(name, 0.0), float(wanted.abs().max()))

    def _give(self, name: str, gradient: torch.Tensor | None) -> None:
        for twin in self.models:
            twin.get_parameter(name).grad = None if gradient is None else gradient.clone()


def _mean(parts: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    """Return the mean of gradients: of narrow ones it has a value also if their sum has none in that dtype."""
    narrow = {part.dtype for part in parts if part is not None} & {torch.float16, torch.bfloat16}
    found = mean([part.double() if part is not None and narrow else part for part in parts])
    return found.to(narrow.pop()) if found is not None and narrow else found
