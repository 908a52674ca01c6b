"""The models of scripts of ``parameter-server``: parameters without a forward, trainers and an optimizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from everyrank.fixtures.models import fill
from everyrank.fixtures.optimizers import row
from everyrank.suites.moves.model import Param as Param
from everyrank.suites.moves.model import add_parameters
from everyrank.suites.parameter_server.wrong_gradients import SPARSE, is_wrong
from torch import nn

#: How long a round may stay open, in seconds, if it may expire: several moves are made in it.
_OPEN = 0.5


@dataclass(frozen=True)
class Model:
    """What a server trains, its trainers, and how it is built.

    ``trainers``: None for a thread of the server's process; or the worker from which that trainer reports over RPC,
    which for 0 is the server's own.
    """

    size: int
    params: tuple[Param, ...]
    trainers: tuple[int | None, ...]
    optimizer: str = "SGD"
    """A row of the optimizer table."""
    variant: str = "lr"
    non_finite: bool | None = None
    """Whether the server takes values that are not finite; None if no trainer reports any."""
    expires: bool = False
    """Whether a round stays open for a short time only."""
    keeps: bool = False
    """Whether trainers keep their answers, which are compared again after each further move."""
    buffer: bool = False
    """Whether the model has buffers beside its parameters, of which one is in no state dict."""

    @property
    def trained(self) -> list[int]:
        """The numbers of the parameters that are not frozen."""
        return [number for number, param in enumerate(self.params) if not param.frozen]

    def wrong_by(self, defect: str) -> list[int]:
        """Return the parameters for which a gradient with this defect is wrong."""
        return [
            number
            for number in self.trained
            if self.params[number].sparse == (defect in SPARSE)
            and is_wrong(defect, self.params[number].shape, self.params[number].dtype)
        ]

    @property
    def options(self) -> dict[str, Any]:
        """The options with which the server is built."""
        options: dict[str, Any] = {"timeout": _OPEN} if self.expires else {}
        return options | ({} if self.non_finite is None else {"non_finite": self.non_finite})

    def make_optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        chosen = row(self.optimizer)
        return chosen.build(parameters, chosen.variant(self.variant))

    def make(self) -> tuple[nn.Module, list[int]]:
        """Return a fresh module, always with the same values, and the number of each of its parameters here."""
        root = nn.Module()
        numbers = {id(made): number for number, made in enumerate(add_parameters(root, self.params))}
        if self.buffer:
            root.register_buffer("passed", torch.tensor(2**40 + 1))
            root.register_buffer("unsaved", torch.tensor([0.5, 3.0]), persistent=False)
        fill(root, seed=3)
        return root, [numbers[id(parameter)] for parameter in root.parameters()]
