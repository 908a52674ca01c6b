"""dtensor-muon: a Muon for DTensors, with Adam for what is no matrix, under DDP and FSDP2."""

from __future__ import annotations

from typing import Any

import pytest
from everyrank.fixtures.optimizers import Row
from everyrank.suites import conformance
from wrappers import under

dtensor_muon = pytest.importorskip("dtensor_muon", reason="pip install dtensor-muon")


class DTensorMuon(dtensor_muon.Muon):  # type: ignore[misc]
    """Muon for matrices and AdamW for the rest."""

    def __init__(self, params: Any, lr: float = 0.02) -> None:
        params = list(params)
        matrices, others = ([each for each in params if (each.ndim >= 2) is wanted] for wanted in (True, False))
        groups = [{"params": matrices}, {"params": others, "algorithm": "adamw"}]
        super().__init__([group for group in groups if group["params"]], lr=lr)


@conformance(*(under(wrapper, "dtensor-muon", [Row(DTensorMuon)]) for wrapper in ("ddp", "fsdp2")))
def test_dtensor_muon(case: Any) -> None:
    case.run()
