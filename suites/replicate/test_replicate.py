"""The contract ``replicate`` on torch's two implementations and on the exemplar."""

from __future__ import annotations

from everyrank.suites import conformance
from everyrank.suites.engine.case import Case
from everyrank.suites.replicate.subjects import DDP, EXEMPLAR, TORCH


@conformance(EXEMPLAR)
def test_exemplar(case: Case) -> None:
    """Our own implementation keeps every law."""
    case.run()


@conformance(TORCH)
def test_torch(case: Case) -> None:
    """torch's composable replicate."""
    case.run()


@conformance(DDP)
def test_ddp(case: Case) -> None:
    """torch's DistributedDataParallel."""
    case.run()
