"""The honest subjects, by name."""

from __future__ import annotations

from tests.parity.parallel.naming import kebab
from tests.parity.parallel.subject import Parallel
from tests.parity.parallel.subjects import (
    context,
    dtensors,
    experts,
    grid,
    megatron,
    pipeline,
    replicas,
    schedules,
    sharded,
    variants,
)

_CLASSES: tuple[type[Parallel], ...] = (
    replicas.Ddp,
    replicas.DdpAccumulating,
    replicas.DdpClipped,
    replicas.DdpDropout,
    replicas.DdpTied,
    replicas.DdpRecomputed,
    replicas.DdpTokenless,
    replicas.Averaged,
    replicas.AveragedByHooks,
    replicas.SummedByHooks,
    replicas.Buffers,
    replicas.Zero,
    replicas.ZeroByHand,
    sharded.Fsdp,
    sharded.FsdpDivided,
    sharded.FsdpClipped,
    sharded.FsdpMixed,
    sharded.FsdpRecomputed,
    sharded.FsdpTied,
    sharded.Hsdp,
    dtensors.TorchTensor,
    dtensors.TorchSequence,
    dtensors.TorchVocabulary,
    megatron.Megatron,
    megatron.MegatronClipped,
    megatron.MegatronSequence,
    context.Context,
    context.ContextZigzag,
    experts.ExpertParallel,
    pipeline.Pipeline,
    pipeline.PipelineTied,
    pipeline.PipelineClipped,
    schedules.TorchPipeline,
    schedules.TorchPipelineAlternating,
    grid.Grid,
    grid.GridSequence,
    variants.AveragedTwoLosses,
    variants.MegatronShared,
    variants.MegatronAdapted,
    variants.MegatronPadded,
    variants.ContextPacked,
    variants.ContextRecurrent,
    variants.ExpertsScaled,
    variants.FsdpMuon,
)

SUBJECTS: dict[str, type[Parallel]] = {kebab(kind.__name__): kind for kind in _CLASSES}
