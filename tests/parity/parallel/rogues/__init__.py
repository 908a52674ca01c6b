"""Rogues of the parallel subjects, by name: each is a subject with one method changed."""

from __future__ import annotations

from tests.parity.parallel.rogue import Rogue
from tests.parity.parallel.rogues import (
    averages,
    contexts,
    cut_and_wrong,
    cuts,
    dtensors,
    edges,
    grids,
    pairs,
    pipelines,
    placements,
    replicas,
    sequences,
    shards,
    specialists,
    variants,
    wholes,
)

ROGUES: dict[str, Rogue] = {
    name: rogue
    for module in (
        replicas,
        averages,
        shards,
        dtensors,
        cuts,
        cut_and_wrong,
        edges,
        sequences,
        contexts,
        pipelines,
        placements,
        specialists,
        grids,
        variants,
        pairs,
        wholes,
    )
    for name, rogue in module.ROGUES.items()
}
