"""``rpc-optimizer``, on torch's DistributedOptimizer by both of its paths, and on the exemplar."""

from __future__ import annotations

from everyrank.suites import conformance
from everyrank.suites.case import Case
from everyrank.suites.rpc_optimizer.subjects import EAGER, EXEMPLAR, SCRIPTED


@conformance(EXEMPLAR)
def test_exemplar(case: Case) -> None:
    """Our own keeps every law."""
    case.run()


@conformance(SCRIPTED)
def test_torch_scripted(case: Case) -> None:
    """torch's, with TorchScript."""
    case.run()


@conformance(EAGER)
def test_torch_eager(case: Case) -> None:
    """torch's, without TorchScript."""
    case.run()
