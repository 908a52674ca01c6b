"""muon-fsdp2: a Muon that gathers each matrix of FSDP2 on one rank."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from everyrank.fixtures.optimizers import Row
from everyrank.suites import conformance
from wrappers import of_muon, under

muon_fsdp2 = pytest.importorskip("muon_fsdp2", reason="pip install muon-fsdp2")

#: A step is compiled for each shape, which takes longer than all laws: the same kernels, one by one.
torch.compiler.set_stance("force_eager")


def muon_update(grad: Any, buffer: Any, momentum: float, nesterov: bool, steps: int, rms_scale: bool) -> Any:
    """The step of one process, which the package calls and does not have, of the parts that it has."""
    update = muon_fsdp2.apply_momentum(grad, buffer, momentum, nesterov)
    return muon_fsdp2.apply_scaling(muon_fsdp2.zeropower_via_newtonschulz5(update, steps).type_as(grad), rms_scale)


muon_fsdp2.muon_update = muon_update


class MuonFsdp2(muon_fsdp2.Muon):  # type: ignore[misc]
    """Muon for matrices and Adam for the rest."""

    def __init__(self, params: Any, lr: float = 0.02) -> None:
        super().__init__([{**group, "lr": lr} for group in of_muon(params)])


@conformance(under("fsdp2", "muon-fsdp2", [Row(MuonFsdp2)]))
def test_muon_fsdp2(case: Any) -> None:
    case.run()
