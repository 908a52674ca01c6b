"""``sharded-optimizer``, on torch's ShardedOptimizer and on the exemplar."""

from __future__ import annotations

from everyrank.suites import conformance
from everyrank.suites.case import Case
from everyrank.suites.sharded_optimizer.subjects import EXEMPLAR, TORCH


@conformance(EXEMPLAR)
def test_exemplar(case: Case) -> None:
    """Our own keeps every law."""
    case.run()


@conformance(TORCH)
def test_torch(case: Case) -> None:
    """torch's, on CPU and gloo."""
    case.run()
