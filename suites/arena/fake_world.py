"""One process as one rank of a world that does not exist, on torch's fake process group."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch.distributed as dist
from everyrank.rank.groups import forget_meshes
from torch.testing._internal.distributed.fake_pg import FakeStore


@contextlib.contextmanager
def fake_world(rank: int, size: int) -> Iterator[None]:
    """Make this process one rank of a world whose other ranks do not exist."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    try:
        with mock.patch.object(dist, "all_gather_object", _gathered):
            yield
    finally:
        dist.destroy_process_group()
        forget_meshes()  # meshes of two ranks are equal: the next rank would get this one's coordinates


def _gathered(found: list[Any], given: Any, group: Any = None) -> None:
    """Gather what this rank gives as what each gives. torch would read it once for each rank."""
    found[:] = [copy.deepcopy(given)] * len(found)
