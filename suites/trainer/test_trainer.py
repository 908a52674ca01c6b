"""The contract ``trainer`` on the exemplars and on torch's trainers."""

from __future__ import annotations

from everyrank.suites import conformance
from everyrank.suites.engine.case import Case
from everyrank.suites.trainer.subjects.ddp import BUCKET_VIEWS, DDP, FP16_HOOK, STATIC_GRAPH, ZERO
from everyrank.suites.trainer.subjects.exemplars import DATA_PARALLEL, SHARDED
from everyrank.suites.trainer.subjects.optimizers import IN_BACKWARD, NAMED, POST_LOCAL_SGD
from everyrank.suites.trainer.subjects.pipelines import GPIPE, ONE_FORWARD_ONE_BACKWARD
from everyrank.suites.trainer.subjects.sharded import FSDP1, FSDP2, HSDP, REPLICATE
from everyrank.suites.trainer.subjects.tensor_parallel import (
    COLUMNS,
    FSDP2_TENSOR_PARALLEL,
    ROWS,
    SEQUENCE_PARALLEL,
    TENSOR_PARALLEL,
)


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


@conformance(FSDP1)
def test_fsdp1(case: Case) -> None:
    """torch's FullyShardedDataParallel."""
    case.run()


@conformance(REPLICATE)
def test_replicate(case: Case) -> None:
    """torch's replicate on the engine of fully_shard."""
    case.run()


@conformance(POST_LOCAL_SGD)
def test_post_local_sgd(case: Case) -> None:
    """torch's PostLocalSGDOptimizer under DistributedDataParallel."""
    case.run()


@conformance(NAMED)
def test_named_optimizer(case: Case) -> None:
    """torch's _NamedOptimizer under DistributedDataParallel."""
    case.run()


@conformance(IN_BACKWARD)
def test_optimizer_in_backward(case: Case) -> None:
    """torch's optimizers in backward under DistributedDataParallel."""
    case.run()


@conformance(COLUMNS)
def test_columns(case: Case) -> None:
    """torch's tensor parallel by columns alone."""
    case.run()


@conformance(ROWS)
def test_rows(case: Case) -> None:
    """torch's tensor parallel by rows alone."""
    case.run()


@conformance(SEQUENCE_PARALLEL)
def test_sequence_parallel(case: Case) -> None:
    """torch's tensor parallel between which each rank has some of the rows."""
    case.run()


@conformance(FSDP2_TENSOR_PARALLEL)
def test_fsdp2_tensor_parallel(case: Case) -> None:
    """torch's fully_shard over tensor parallel."""
    case.run()


@conformance(GPIPE)
def test_gpipe(case: Case) -> None:
    """torch's pipelining by the schedule GPipe."""
    case.run()


@conformance(ONE_FORWARD_ONE_BACKWARD)
def test_one_forward_one_backward(case: Case) -> None:
    """torch's pipelining by the schedule 1F1B."""
    case.run()
