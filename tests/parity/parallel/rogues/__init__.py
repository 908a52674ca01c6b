"""Rogues of the parallel subjects, by name: each is a subject with one method changed."""

from __future__ import annotations

from tests.parity.parallel.rogue import Rogue
from tests.parity.parallel.rogues import (
    averages,
    contexts,
    cuts,
    dtensors,
    edges,
    grids,
    pairs,
    pipelines,
    replicas,
    sequences,
    shards,
    specialists,
    variants,
)

ROGUES: dict[str, Rogue] = {
    name: rogue
    for module in (
        replicas,
        averages,
        shards,
        dtensors,
        cuts,
        edges,
        sequences,
        contexts,
        pipelines,
        specialists,
        grids,
        variants,
        pairs,
    )
    for name, rogue in module.ROGUES.items()
}
