"""The law of ``sharded-optimizer`` about worlds that are too large to start."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from everyrank.suites.arena.cover import Box, Cover, Owned
from everyrank.suites.arena.fake_world import fake_world
from everyrank.suites.arena.subject_errors import subject_acts
from everyrank.suites.engine.contract import Point
from everyrank.suites.errors import Deviation
from everyrank.suites.sharded_optimizer.arena import Arena
from everyrank.suites.sharded_optimizer.contract import CONTRACT
from everyrank.suites.sharded_optimizer.geometry import chunks
from torch import nn
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed._shard.sharding_spec import ChunkShardingSpec


@dataclass(frozen=True, kw_only=True)
class LargePoint(Point):
    """A point with the length that is cut, its dim, and the world that is simulated."""

    length: int
    dim: int
    simulated: int


#: Label, length, dim and world size. torch gathers all ranks' specs, a placement a rank in each: 1,024 take 3 s.
_CUTS = (
    ("uneven", 70_001, 0, 512),
    ("even", 1536, 0, 512),
    ("last-shorter", 1535, 1, 512),
    ("fewer-rows-than-ranks", 20, 0, 512),
    ("uneven", 70_001, 0, 1024),
    ("few-ranks", 24, 0, 6),
    ("few-ranks", 56, 1, 7),
)


def _points() -> Iterator[LargePoint]:
    for label, length, dim, simulated in _CUTS:
        core = (label, simulated) in (("uneven", 512), ("few-ranks", 6))
        yield LargePoint(f"{label}-ws{simulated}", 1, core=core, length=length, dim=dim, simulated=simulated)


@CONTRACT.law("large-world", _points, fixtures=(), fresh=True)
def large_world(arena: Arena, point: LargePoint) -> None:
    """In a world of hundreds of ranks, shard_parameter gives each rank one chunk: in their order, without a gap.

    Each is as long as the spec cuts it, also in a small world whose size no other case has. The first rank, the last
    and one between know the same whole plan, and have the tensors that it has for them.
    """
    plans = {}
    for rank in (0, point.simulated // 2, point.simulated - 1):
        with fake_world(rank, point.simulated):
            sharded = _cut(arena, point, rank)
            plans[rank] = _plan(sharded)
            _check(plans[rank], sharded, rank, point.simulated)
            _check_lengths(plans[rank], point)
        if plans[rank] != plans[0]:
            raise Deviation(f"rank {rank} of {point.simulated} has another plan than rank 0")


def _cut(arena: Arena, point: LargePoint, rank: int) -> ShardedTensor:
    shape = (point.length, 2) if point.dim == 0 else (2, point.length)
    module = nn.Module()
    module.register_parameter("weight", nn.Parameter(torch.ones(shape, device=arena.world.device)))
    spec = ChunkShardingSpec(point.dim, [arena.placement(other) for other in range(point.simulated)])
    with subject_acts(f"rank {rank} of {point.simulated}: shard_parameter"):
        arena.tool("shard_parameter")(module, "weight", spec)
    sharded = module.weight
    if not isinstance(sharded, ShardedTensor):
        raise Deviation(f"shard_parameter left a {type(sharded).__name__}, not a ShardedTensor")
    return sharded


def _plan(sharded: ShardedTensor) -> dict[int, list[Box]]:
    """Return the boxes of each rank that has any."""
    found: dict[int, list[Box]] = {}
    for shard in sharded.metadata().shards_metadata:
        placement = shard.placement
        rank = placement.rank() if placement is not None and not isinstance(placement, str) else None
        if rank is None:
            raise Deviation(f"the shard at {shard.shard_offsets} is on no rank: {placement}")
        found.setdefault(rank, []).append((tuple(shard.shard_offsets), tuple(shard.shard_sizes)))
    return found


def _check(plan: dict[int, list[Box]], sharded: ShardedTensor, asked: int, size: int) -> None:
    """Raise a Deviation unless the plan cuts the whole, and the asked rank has its part of it."""
    if strange := sorted(set(plan) - set(range(size))):
        raise Deviation(f"{size} ranks: a shard is on rank {strange[0]}")
    cover = Cover({"weight": tuple(sharded.metadata().size)}, size)
    for rank in range(size):
        part = Owned(tuple(plan.get(rank, ())), 1)
        if len(part.full) > 1:
            raise Deviation(f"rank {rank} of {size} has {len(part.full)} chunks that have rows, instead of one")
        cover.add(rank, {"weight": part})
    cover.check_whole()
    held = [
        (tuple(shard.metadata.shard_offsets), tuple(shard.metadata.shard_sizes), tuple(shard.tensor.shape))
        for shard in sharded.local_shards()
    ]
    due = [(offsets, sizes, sizes) for offsets, sizes in plan.get(asked, ())]
    if held != due:
        raise Deviation(f"rank {asked} of {size} has the shards {held}, and its plan {due}")


def _check_lengths(plan: dict[int, list[Box]], point: LargePoint) -> None:
    """Raise a Deviation unless each rank's chunk is as long as the spec cuts it."""
    for rank, due in enumerate(chunks(point.length, point.simulated)):
        found = sum(sizes[point.dim] for _, sizes in plan.get(rank, ()))
        if found != due:
            raise Deviation(f"rank {rank} of {point.simulated} has a chunk of {found}, where the spec cuts {due}")
