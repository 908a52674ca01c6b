"""The contract ``trainer`` on the exemplars and on torch's trainers."""

from __future__ import annotations

from everyrank.suites import conformance
from everyrank.suites.engine.case import Case
from everyrank.suites.trainer.subjects.ddp import BUCKET_VIEWS, DDP, FP16_HOOK, STATIC_GRAPH, ZERO
from everyrank.suites.trainer.subjects.exemplars import DATA_PARALLEL, SHARDED
from everyrank.suites.trainer.subjects.sharded import FSDP2, HSDP
from everyrank.suites.trainer.subjects.tensor_parallel import TENSOR_PARALLEL


@conformance(DATA_PARALLEL)
def test_data_parallel(case: Case) -> None:
    """Our own trainer with the whole optimizer on every rank keeps every law."""
    case.run()


@conformance(SHARDED)
def test_sharded(case: Case) -> None:
    """Our own trainer in which each parameter has an owner keeps every law."""
    case.run()


@conformance(DDP)
def test_ddp(case: Case) -> None:
    """torch's DistributedDataParallel."""
    case.run()


@conformance(BUCKET_VIEWS)
def test_ddp_with_bucket_views(case: Case) -> None:
    """DistributedDataParallel whose gradients are views of its buckets."""
    case.run()


@conformance(STATIC_GRAPH)
def test_ddp_with_a_static_graph(case: Case) -> None:
    """DistributedDataParallel that was promised a static graph."""
    case.run()


@conformance(FP16_HOOK)
def test_ddp_with_a_hook(case: Case) -> None:
    """DistributedDataParallel with a communication hook that sends fp16."""
    case.run()


@conformance(ZERO)
def test_zero(case: Case) -> None:
    """torch's ZeroRedundancyOptimizer under DistributedDataParallel."""
    case.run()


@conformance(FSDP2)
def test_fsdp2(case: Case) -> None:
    """torch's fully_shard."""
    case.run()


@conformance(HSDP)
def test_hsdp(case: Case) -> None:
    """torch's fully_shard over a mesh of two dimensions."""
    case.run()


@conformance(TENSOR_PARALLEL)
def test_tensor_parallel(case: Case) -> None:
    """torch's tensor parallel, by columns and rows."""
    case.run()
