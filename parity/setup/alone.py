"""A world of one rank inside of a larger one: what the user's code is if nothing is parallel."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

#: Names of groups are numbers. Those inside count from here: far from those outside, and the same each time, since
#: torch keeps by the shape of a mesh what it once knew of its groups.
_FIRST = 1_000_000


@contextlib.contextmanager
def lone_world() -> Iterator[None]:
    """Make this process the only rank there is, for code that asks inside. No other rank takes part.

    Groups that are made inside are destroyed at the end. A group or a mesh from outside is still that of all ranks.
    """
    world: Any = c10d._world
    outer, known, hook = world.default_pg, set(world.pg_names), sys.excepthook
    kept = world.group_count, c10d._backend, c10d._default_pg_init_method
    c10d._update_default_pg(None)  # torch refuses a second default group
    world.group_count = _FIRST
    try:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        yield
    finally:
        made = [group for group in world.pg_names if group not in known]
        c10d._update_default_pg(outer)
        for group in reversed(made):
            dist.destroy_process_group(group)
        world.group_count, c10d._backend, c10d._default_pg_init_method = kept
        sys.excepthook = hook
