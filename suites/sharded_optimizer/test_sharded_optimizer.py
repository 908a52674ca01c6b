"""The contract ``sharded-optimizer`` on torch's ShardedOptimizer and on the exemplar."""

from __future__ import annotations

from everyrank.suites import conformance
from everyrank.suites.engine.case import Case
from everyrank.suites.sharded_optimizer.subjects import EXEMPLAR, TORCH, TORCH_CUDA


@conformance(EXEMPLAR)
def test_exemplar(case: Case) -> None:
    """Our own implementation keeps every law."""
    case.run()


@conformance(TORCH)
def test_torch(case: Case) -> None:
    """torch's ShardedOptimizer, on CPUs with gloo."""
    case.run()


@conformance(TORCH_CUDA)
def test_torch_cuda(case: Case) -> None:
    """torch's ShardedOptimizer, on four GPUs with NCCL; skipped if there are fewer."""
    case.run()
