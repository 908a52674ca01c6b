"""The plain optimizer on whole tensors, whose gradients are put together of what all ranks hold.

An optimizer that looks at more than an element (Muon, LAMB, Adafactor) makes something else of a part than of the
whole. What the plain one makes of each rank's part is then no measure; what it makes of the whole is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from everyrank.parity.run.plain import BACKWARD, PARAMETER, START
from everyrank.parity.run.shadow import are_near
from everyrank.parity.run.store import Store
from everyrank.parity.setup.ranks import Ranks
from everyrank.parity.values.dye import Holdings, Share
from everyrank.parity.values.names import parameters
from everyrank.parity.values.tree import gradient_of, local
from torch import nn

#: The values and the gradient of a part, by name and the rank's own key.
_Parts = dict[tuple[str, str], tuple[torch.Tensor, torch.Tensor | None]]


class Assembled:
    """Copies of the plain model's parameters, with an optimizer of their own, on each rank."""

    def __init__(
        self,
        optimizer: Callable[[Iterable[nn.Parameter]], Any],
        store: Store,
        dtype: torch.dtype,
        ranks: Ranks,
        holdings: Holdings,
    ) -> None:
        self._ranks, self._mine = ranks, holdings.shares
        self._all: list[tuple[Share, ...]] = ranks.gather(holdings.shares)
        self._copies = {
            name: nn.Parameter(store[PARAMETER, START, name].to(dtype)) for name in reversed(store.notes[BACKWARD])
        }
        self._optimizer = optimizer([*self._copies.values()])
        self._taken: _Parts = {}

    def take(self, modules: list[nn.Module]) -> None:
        """Take this rank's parameters and gradients as they are before a step."""
        held = dict(parameters(modules))
        self._taken = {}
        for share in self._mine:
            parameter = held.get(share.key)
            if parameter is not None and share.name in self._copies:
                gradient = None if parameter.grad is None else share.read(gradient_of(parameter)).clone()
                self._taken[share.name, share.key] = share.read(local(parameter.detach())).clone(), gradient

    @torch.no_grad()
    def step(self) -> None:
        """Put together what all ranks have taken, and step. Every rank calls it, when its own step is over."""
        for copy in self._copies.values():
            copy.grad = None
        for shares, taken in zip(self._all, self._ranks.gather(self._taken), strict=True):
            for share in shares:
                values, gradient = taken.get((share.name, share.key), (None, None))
                if share.name not in self._copies or values is None:
                    continue
                copy, ids = self._copies[share.name], share.plain.ids()
                copy.view(-1)[ids] = values.reshape(-1).to(copy)
                if gradient is not None:
                    copy.grad = torch.zeros_like(copy) if copy.grad is None else copy.grad
                    copy.grad.view(-1)[ids] = gradient.reshape(-1).to(copy)
        self._optimizer.step()

    def agrees(self, key: str, values: torch.Tensor) -> bool:
        """Return whether all that a tensor of this rank holds of the plain model is where the copies are."""
        shares = [share for share in self._mine if share.key == key]
        return bool(shares) and all(
            share.name in self._copies
            and are_near(share.expected(self._copies[share.name].detach()), share.read(values))
            for share in shares
        )


def looks_at_elements(optimizer: Callable[[Iterable[nn.Parameter]], Any]) -> bool:
    """Return whether an optimizer makes of each part of a tensor what it makes of the whole.

    One that takes no small matrices alone is believed to.
    """
    generator = torch.Generator().manual_seed(1)
    values, *gradients = (torch.randn(6, 4, generator=generator) for _ in range(3))
    made = []
    for pieces in (1, 2):
        tensors = [nn.Parameter(part.clone()) for part in values.chunk(pieces)]
        try:
            stepping = optimizer(tensors)
            for gradient in gradients:
                for tensor, part in zip(tensors, gradient.chunk(pieces), strict=True):
                    tensor.grad = part.clone()
                stepping.step()
        except Exception:
            return True
        made.append(torch.cat([tensor.detach() for tensor in tensors]))
    whole, halves = made
    return torch.allclose(whole, halves, rtol=1e-4, atol=1e-5)
