"""The ranks of one call: a group of its own, so that nothing here mixes with the user's collectives."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch.distributed as dist
from everyrank.model.mutation import OUR_GROUP
from everyrank.parity.errors import Unusable, defect
from torch import nn
from torch.distributed.tensor import DTensor

T = TypeVar("T")
R = TypeVar("R")


@dataclass
class Ranks:
    """This process among all that called parity."""

    rank: int
    size: int
    group: Any

    def gather(self, value: Any) -> list[Any]:
        """Return what each rank has, by rank. Every rank calls it, as often as the others."""
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self.group)
        return values

    def decide(self, value: T, decision: Callable[[list[T]], R]) -> R:
        """Return what rank 0 makes of what each rank has; where it fails, all ranks do."""
        values: list[Any] | None = [None] * self.size if self.rank == 0 else None
        dist.gather_object(value, values, dst=0, group=self.group)
        decided: list[Any] = [None]
        if values is not None:
            try:
                decided = [decision(values)]
            except Exception as error:
                decided = [defect(error) or error]
        dist.broadcast_object_list(decided, src=0, group=self.group)
        if isinstance(decided[0], Exception):
            raise decided[0]
        found: R = decided[0]
        return found

    def close(self) -> None:
        """Close the group. A traceback that has this object must not keep its connections open."""
        group, self.group = self.group, None
        dist.destroy_process_group(group)

    def first_of_host(self) -> int:
        """Return the first rank that runs on this host."""
        hosts = self.gather(socket.gethostname())
        return hosts.index(hosts[self.rank])


@contextlib.contextmanager
def all_ranks() -> Iterator[Ranks]:
    """Open the group of this call, and close it again."""
    if not (dist.is_available() and dist.is_initialized()):
        raise Unusable(
            "parity compares ranks, and this process belongs to no process group: ask for the fixture process_group "
            "in a test, or call torch.distributed.init_process_group in a script."
        )
    ranks = Ranks(dist.get_rank(), dist.get_world_size(), dist.new_group(backend="gloo", group_desc=OUR_GROUP))
    try:
        # A gloo group that is closed before all ranks have met in it fails on those that come later.
        ranks.gather(None)
        yield ranks
    finally:
        # A rank that fails leaves alone: the others end by the harness' verdict or by the group's timeout.
        ranks.close()


def groups_of_torch(modules: Iterable[nn.Module]) -> dict[str, set[tuple[int, ...]]]:
    """Return the ranks of this process' groups, under the names of their mesh dimensions where they have any.

    A dimension over all ranks has no group of its own: the mesh of a parameter knows its name.
    """
    world = dist.distributed_c10d._world
    found: dict[str, set[tuple[int, ...]]] = {}
    for group, ranks in world.pg_group_ranks.items():
        if isinstance(group, dist.ProcessGroup) and len(ranks) < dist.get_world_size():
            label = group.group_desc
            name = world.pg_names[group] if not label or label == "undefined" else label.removeprefix("mesh_")
            found.setdefault(name, set()).add(tuple(sorted(ranks)))
    parameters = (each for module in modules for each in module.parameters())
    for mesh in {each.device_mesh for each in parameters if isinstance(each, DTensor)}:
        for number, name in enumerate(mesh.mesh_dim_names or ()):
            found.setdefault(name, set()).add(tuple(sorted(dist.get_process_group_ranks(mesh.get_group(number)))))
    return found


def named_groups(ranks: Ranks, mine: Mapping[str, set[tuple[int, ...]]]) -> dict[str, list[list[int]]]:
    """Return the groups of all ranks under their names: those that are more than one rank."""
    found: dict[str, set[tuple[int, ...]]] = {}
    for each in ranks.gather(dict(mine)):
        for name, groups in each.items():
            for group in groups:
                if len(group) > 1:
                    found.setdefault(name, set()).add(group)
    return {name: [list(group) for group in sorted(groups)] for name, groups in sorted(found.items())}
