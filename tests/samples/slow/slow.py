"""What the tests of this folder have in common: they are slow, and right, and none may be taken for a deadlock.

``LONG`` is more than the time for which a world must stand still before its ranks are asked. Sleeping here is what a
slow rank does.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

LONG = 2.5
of_2, of_3, of_4 = (pytest.mark.world(size, timeout=90) for size in (2, 3, 4))


def vector(size: int = 2) -> torch.Tensor:
    return torch.ones(size)


def reduce_on_all(group: Any = None) -> None:
    total = vector()
    dist.all_reduce(total, group=group)
    assert total[0] == dist.get_world_size(group)


def later(command: str) -> None:
    """Run a shell command after a while in a process that is no child of this rank."""
    subprocess.run(["/bin/sh", "-c", f"(sleep {LONG}; {command}) >/dev/null 2>&1 &"], check=True)


def on_rank_0(*acts: Callable[[Path], object]) -> Callable[..., None]:
    """Return a test for each act: rank 0 takes its time for it, and the other waits for rank 0 in a sum."""

    @of_2
    @pytest.mark.parametrize("act", acts, ids=[act.__name__ for act in acts])
    def test(world, process_group, tmp_path, act):
        if world.rank == 0:
            act(tmp_path)
        reduce_on_all()

    return test
