"""The default process group of a rank, kept from test to test while the world stays warm."""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from everyrank.devices import device_types
from everyrank.leaks import libraries
from everyrank.leaks.snapshot import LeakWatch
from everyrank.rank import point_to_point
from everyrank.rank.point_to_point import PointToPoint

if TYPE_CHECKING:
    from everyrank.rank.context import RankContext
    from everyrank.rank.world import World


class Groups:
    """One rank's default group. The first test that asks for it opens it; it may stay open for later tests."""

    def __init__(self) -> None:
        self._kept: Any = None
        self._group_count = 0
        self._messages: PointToPoint | None = None
        self._before: tuple[int, dict[str, int]] = (0, {})

    @contextlib.contextmanager
    def default(self, world: World, watch: LeakWatch, leaving: bool, keep: bool) -> Iterator[Any]:
        """Provide the default group for one test, over a store of its own."""
        import torch.distributed as dist

        if self._kept is None:
            with watch.allowing():
                self._open(world, outlives=keep)
                self.keep(dist.group.WORLD)
        try:
            yield dist.group.WORLD
        finally:
            # A process that is about to end need not destroy its group: gloo takes about 40 ms for that with 4 ranks,
            # since it waits for a turn of its thread, 10 ms, for each connection.
            if not keep and not leaving:
                self._kept = self._messages = None
                point_to_point.stop()
                if dist.is_initialized():
                    dist.destroy_process_group()

    def _open(self, world: World, outlives: bool) -> None:
        import torch.distributed as dist

        if (kind := device_types.type_of(world.device)) is not None:
            kind.bind(world.device)
        # The group has its own file, since FileStore deletes its file with its last user (pytorch#67566). If the
        # group outlives the test, the file does, too: a later new_group() uses this store.
        url = world.rendezvous("process_group", outlives)
        file = url.removeprefix("file://")
        meeting: dict[str, Any] = {"init_method": url} if file == url else {"store": dist.FileStore(file, world.size)}
        dist.init_process_group(
            world.backend,
            **meeting,
            rank=world.rank,
            world_size=world.size,
            timeout=timedelta(minutes=30),
        )

    def is_open(self) -> bool:
        """Return whether the fixture `process_group` holds a group now."""
        return self._kept is not None

    def keep(self, group: Any) -> None:
        """Keep a group that a test opened for the next tests of this world."""
        self._kept = group
        self._messages = PointToPoint(group)
        point_to_point.count(self._messages)

    def messages(self) -> PointToPoint | None:
        """Return the count of messages to and from single ranks in the kept group; None without such a group."""
        return None if self._kept is None else self._messages

    def collectives(self) -> int | None:
        """Return how many collectives this rank has issued in the kept group; None without such a group."""
        c10d = sys.modules.get("torch.distributed.distributed_c10d")
        if self._kept is None or self._messages is None or c10d is None or not c10d.is_initialized():
            return None
        try:
            count: int = self._kept._get_sequence_number_for_group()
        except (AttributeError, RuntimeError):
            return None  # this torch or this backend does not count: such a group is not reused
        return count - self._messages.within_collectives

    def begin_test(self) -> None:
        """Note what all groups have exchanged before a test."""
        self._before = _exchanged()

    def quiet(self) -> bool:
        """Return whether this rank has surely made no collective in the running test, nor sent a message."""
        (made, before), (made_now, now) = self._before, _exchanged()
        none_is_gone = made_now - made == len(now.keys() - before.keys())
        return self.collectives() is not None and none_is_gone and all(now[key] == before.get(key, 0) for key in now)

    def lost(self) -> bool:
        """Return whether a test destroyed or replaced the kept group."""
        if self._kept is None:
            return False
        import torch.distributed as dist

        return not dist.is_initialized() or dist.group.WORLD is not self._kept

    def forget_meshes(self) -> None:
        """Forget the meshes of earlier tests if groups have been made since, or none is left: torch counts from 0
        again when the default group is destroyed."""
        c10d = sys.modules.get("torch.distributed.distributed_c10d")
        count: int = 0 if c10d is None else c10d._world.group_count
        if count != self._group_count or count == 0:
            forget_meshes()
        self._group_count = count

    def barrier(self) -> str:
        """Pass a barrier of the kept group; return what went wrong, or an empty text."""
        if self._kept is None:
            return ""
        import torch.distributed as dist

        try:
            dist.barrier()
        except Exception as error:
            return f"the closing barrier failed: {error}"
        return ""


def _exchanged() -> tuple[int, dict[str, int]]:
    """Return how many groups were made so far, and by group how many collectives and messages this rank began in it.

    A group that does not count them has -1.
    """
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is None or not c10d.is_initialized():
        return 0, {}
    counts = {}
    for group, name in c10d._world.pg_names.items():
        try:
            counts[name] = group._get_sequence_number_for_group()
        except (AttributeError, RuntimeError):
            counts[name] = -1
    return c10d._world.group_count, counts


def destroy_after_test(rank: RankContext) -> None:
    """Destroy the groups that a method left open, as torch's harness does after it."""
    import torch.distributed as dist

    if dist.is_initialized():
        rank.announce_destruction()
        with contextlib.suppress(AssertionError, ValueError):
            dist.destroy_process_group()


def unbind_defaults() -> None:
    """Release the group that was open when `torch.distributed.nn.functional` was first imported.

    The module uses ``group.WORLD`` as a default argument: after the group is destroyed, its sockets would stay open
    and later calls would use it. DDP imports the module. The default None means the group that is open at the call.
    """
    module = sys.modules.get("torch.distributed.nn.functional")
    if module is None:
        return
    import torch.distributed as dist

    for function in vars(module).values():
        if isinstance(function, types.FunctionType) and function.__defaults__:
            defaults = (None if isinstance(value, dist.ProcessGroup) else value for value in function.__defaults__)
            function.__defaults__ = tuple(defaults)


#: What DTensor keeps by the mesh of its arguments, besides the results of operations: functions that clear it, by
#: module and by names in it. Another torch keeps some of it elsewhere, or not at all.
_KEPT_BY_MESH = (
    ("_collective_utils", "MeshTopoInfo.build_from_mesh.cache_clear"),
    ("_redistribute", "clear_redistribute_planner_cache"),
    ("_redistribute", "_gen_transform_infos.cache_clear"),
    ("_sharding_prop", "ShardingPropagator._propagate_tensor_meta_cached.cache_clear"),
    ("_ops.single_dim_strategy", "_cached_create_expanded_strategy.cache_clear"),
)


def forget_meshes() -> None:
    """Let DTensor forget what it keeps by mesh: the results of operations, and how it moves shards.

    To it two meshes of the same ranks are equal. What it keeps has the first such mesh, and so groups that may be
    destroyed by now; their sockets stay open as long as it is kept.
    """
    if "torch.distributed.tensor._api" not in sys.modules:
        return
    with contextlib.suppress(ImportError):  # another torch keeps them elsewhere, or not at all
        from torch.distributed.tensor.debug import _clear_sharding_prop_cache

        _clear_sharding_prop_cache()  # type: ignore[no-untyped-call]
    for module, names in _KEPT_BY_MESH:
        clear = libraries.private(f"torch.distributed.tensor.{module}", *names.split("."))
        if clear is not None:
            clear()
