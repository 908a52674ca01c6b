"""The default process group of a rank, kept from test to test while the world stays warm."""

from __future__ import annotations

import contextlib
import os
import sys
import types
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from everyrank.leaks import Watch

if TYPE_CHECKING:
    from everyrank.world import World


class Groups:
    """One rank's default group. It is opened by the first test that asks and stays, if told to."""

    def __init__(self) -> None:
        self._kept: Any = None

    @contextlib.contextmanager
    def default(self, world: World, watch: Watch, leaving: bool, keep: bool) -> Iterator[Any]:
        """The default group for one test, over a FileStore of its own."""
        import torch.distributed as dist

        if self._kept is None:
            with watch.allowing():
                self._open(world, outlives=keep)
                self._kept = dist.group.WORLD
        try:
            yield dist.group.WORLD
        finally:
            # A process that is about to end does not wait for a destructor.
            if not keep and not leaving:
                self._kept = None
                if dist.is_initialized():
                    dist.destroy_process_group()

    def _open(self, world: World, outlives: bool) -> None:
        import torch
        import torch.distributed as dist

        if world.device.startswith("cuda"):
            torch.cuda.set_device(world.device)
        # A file of its own: FileStore deletes its file with its last user (pytorch#67566). Beside the test's
        # folder, where the group outlives the test: new_group() in a later test goes to this store again.
        path = f"{world.folder}.process_group" if outlives else os.path.join(world.folder, "process_group")
        store: Any = dist.FileStore(path, world.size)  # type: ignore[attr-defined]
        dist.init_process_group(
            world.backend,
            store=store,
            rank=world.rank,
            world_size=world.size,
            timeout=timedelta(minutes=30),
        )

    def is_open(self) -> bool:
        """Whether the fixture `process_group` holds a group now."""
        return self._kept is not None

    def keep(self, group: Any) -> None:
        """A group that a test has opened for those that follow it in this world."""
        self._kept = group

    def collectives(self) -> int | None:
        """How many collectives this rank has issued in the kept group; None without such a group."""
        c10d = sys.modules.get("torch.distributed.distributed_c10d")
        if self._kept is None or c10d is None or not c10d.is_initialized():
            return None
        try:
            count: int = self._kept._get_sequence_number_for_group()
        except (AttributeError, RuntimeError):
            return None  # this torch or this backend does not count: such a group is not reused
        return count

    def lost(self) -> bool:
        """Whether a test destroyed or replaced the group that was kept."""
        if self._kept is None:
            return False
        import torch.distributed as dist

        return not dist.is_initialized() or dist.group.WORLD is not self._kept

    def barrier(self) -> str:
        """Pass a barrier of the kept group; what went wrong, or nothing."""
        if self._kept is None:
            return ""
        import torch.distributed as dist

        try:
            dist.barrier()
        except Exception as error:
            return f"the closing barrier failed: {error}"
        return ""


def unbind_defaults() -> None:
    """Let go of the group that `torch.distributed.nn.functional` found open when it was first imported.

    It takes ``group.WORLD`` for a default argument: that group would live on after its end, with all its sockets, and
    be what later calls use. DDP imports it. Without a group the default is None, the group that is open at the call.
    """
    module = sys.modules.get("torch.distributed.nn.functional")
    if module is None:
        return
    import torch.distributed as dist

    for function in vars(module).values():
        if isinstance(function, types.FunctionType) and function.__defaults__:
            defaults = (None if isinstance(value, dist.ProcessGroup) else value for value in function.__defaults__)
            function.__defaults__ = tuple(defaults)
