"""muon-optimizer: Keller Jordan's Muon, which steps each matrix on one rank and gathers it, under DDP."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from everyrank.fixtures.optimizers import Row, Variant
from everyrank.suites import conformance
from everyrank.suites.trainer.subjects.ddp import Ddp
from wrappers import of_muon, under

pytest.importorskip("muon", reason="pip install muon-optimizer")
from muon import Muon, MuonWithAuxAdam, SingleDeviceMuon, SingleDeviceMuonWithAuxAdam


class WithAuxAdam(SingleDeviceMuonWithAuxAdam):
    def __init__(self, params: list[torch.Tensor]) -> None:
        super().__init__(of_muon(params, lr=0.01))


class Distributed(Ddp):
    """In place of the class for one process, which the reference has, that for many."""

    def optimize(self, optimizer_class: Any, parameters: list[Any], args: Any, kwargs: Any) -> Any:
        if optimizer_class is WithAuxAdam:
            return MuonWithAuxAdam(of_muon(parameters, lr=0.01))
        if issubclass(optimizer_class, SingleDeviceMuon):
            return Muon(parameters, *args, **kwargs)
        return super().optimize(optimizer_class, parameters, args, kwargs)

    def update(self, closure: Callable[[], torch.Tensor]) -> Any:
        loss = closure()
        self.optimizer.step()
        return loss


# Four equal matrices on three ranks are left out: which error a rank meets first differs (docs/findings/muon.md).
# gloo gathers tensors of one shape only, NCCL any: the matrices of each model have one shape.
MATRICES = frozenset({"2d"})
ROWS = [
    Row(SingleDeviceMuon, (Variant("decay", {"weight_decay": 0.1}),), needs=MATRICES, model="equal-shapes"),
    Row(WithAuxAdam, model="tied"),
]


@conformance(under("ddp", "muon-optimizer", ROWS, build=Distributed, sizes=(1, 2, 3, 4)))
def test_muon(case: Any) -> None:
    case.run()
