"""The plain optimizer on whole tensors, whose gradients are put together of what all ranks hold.

An optimizer that looks at more than an element (Muon, LAMB, Adafactor) makes something else of a part than of the
whole. What the plain one makes of each rank's part is then no measure; what it makes of the whole is.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from everyrank.parity.run.plain import BACKWARD, PARAMETER, START
from everyrank.parity.run.shadow import are_near
from everyrank.parity.run.store import Store
from everyrank.parity.setup.given import Setup
from everyrank.parity.setup.optimizers import optimizers_of, takes, twin_of
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
        setup: Setup,
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
        if takes(setup.optimizer) == "parameters":
            root: nn.Module = nn.ParameterList(self._copies.values())
        else:
            root = _root_of(setup, self._copies.get)
        self._optimizer = optimizers_of(setup.optimizer, root, self._copies)
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
        self._optimizer.end()

    def agrees(self, key: str, values: torch.Tensor) -> bool:
        """Return whether all that a tensor of this rank holds of the plain model is where the copies are."""
        shares = [share for share in self._mine if share.key == key]
        return bool(shares) and all(
            share.name in self._copies
            and are_near(share.expected(self._copies[share.name].detach()), share.read(values))
            for share in shares
        )


def _root_of(setup: Setup, other: Callable[[str, nn.Parameter], nn.Parameter]) -> nn.Module:
    """Return the plain model with other parameters, for optimizer= to choose from."""
    model = setup.fresh()
    return twin_of(model, {id(each): other(name, each) for name, each in model.named_parameters()})


def looks_at_elements(setup: Setup) -> bool:
    """Return whether what an optimizer makes of an element depends on that element alone.

    One that takes no small tensors is believed to, and so is one that chooses from a model that needs a world of one.
    """
    if setup.one_rank and takes(setup.optimizer) != "parameters":
        return True
    made = [_first_halves(setup, factor) for factor in (1.0, 3.0)]
    return made[0] is None or made[1] is None or torch.allclose(made[0], made[1], rtol=1e-4, atol=1e-5)


def _first_halves(setup: Setup, factor: float) -> torch.Tensor | None:
    """Return what two steps make of the first half of small tensors; in the second, the other half has a factor.

    In both it would cancel where directions have no size, as Adam's in LAMB.
    """
    generator = torch.Generator().manual_seed(1)

    def small(name: str, each: nn.Parameter) -> nn.Parameter:
        shape = [min(size, most) for size, most in zip(each.shape, (6, 4, *each.shape), strict=False)]
        return nn.Parameter(torch.randn(shape, generator=generator), each.requires_grad)

    if takes(setup.optimizer) == "parameters":
        root: nn.Module = nn.ParameterList([small("", nn.Parameter(torch.empty(6, 4)))])
    else:
        root = _root_of(setup, small)
    trained = [each for each in root.parameters() if each.requires_grad]
    try:
        stepping = optimizers_of(setup.optimizer, root, [name for name, _ in root.named_parameters()])
        for number in range(2):
            for each in trained:
                each.grad = torch.randn(each.shape, generator=generator)
                each.grad.view(-1)[each.numel() // 2 :] *= factor**number
            stepping.step()
    except Exception:
        return None
    return torch.cat([each.detach().reshape(-1)[: each.numel() // 2] for each in trained])
