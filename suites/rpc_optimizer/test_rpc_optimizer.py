"""The contract ``rpc-optimizer`` on both paths of torch's DistributedOptimizer, and on the exemplar."""

from __future__ import annotations

from everyrank.suites import conformance
from everyrank.suites.engine.case import Case
from everyrank.suites.rpc_optimizer.subjects import EAGER, EXEMPLAR, SCRIPTED


@conformance(EXEMPLAR)
def test_exemplar(case: Case) -> None:
    """Our own implementation keeps every law."""
    case.run()


@conformance(SCRIPTED)
def test_torch_scripted(case: Case) -> None:
    """torch's DistributedOptimizer with TorchScript."""
    case.run()


@conformance(EAGER)
def test_torch_eager(case: Case) -> None:
    """torch's DistributedOptimizer without TorchScript."""
    case.run()
