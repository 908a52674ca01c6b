"""Process groups that belong to one case: a rank may leave its group as a dying process would."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from everyrank import current_world
from everyrank.fixtures.failing import InjectedError
from everyrank.rank.context import current_rank
from everyrank.rank.groups import forget_meshes
from torch.distributed import distributed_c10d
from torch.distributed.distributed_c10d import _world

#: A choice that a subject may declare: if a rank fails, the errors of the others name it. Over c10d nobody has that
#: for nothing: gloo and NCCL report a connection or a time limit, and no rank.
NAMES_RANKS = "names-ranks"

#: The time limit of collectives. If a peer is gone, they end at once; if a peer never comes, after this time.
PATIENCE = timedelta(seconds=10)
#: The time limit of collectives whose peers are known not to come.
_SHORT_PATIENCE = timedelta(milliseconds=300)


#: The groups of `own_group` that are open now.
_own_groups: list[Any] = []


def is_in_own_group() -> bool:
    """Return whether the default group is one of this case alone."""
    return bool(_own_groups)


@contextlib.contextmanager
def own_group(size: int | None = None) -> Iterator[Group]:
    """Replace the default group by one of this case, of the first ranks or of all, which a rank may leave.

    The subject needs no change for it: it uses the default group, or makes its own groups while it is built. A rank
    that is not in the group may not use it.
    """
    ranks = list(range(dist.get_world_size() if size is None else size))
    _count_alike()
    group = Group(_connections(), set(_world.pg_map))
    default = dist.group.WORLD
    own_group = dist.new_group(ranks, timeout=PATIENCE)
    current_world().barrier()  # a rank that leaves at once must not keep others from connecting
    member = own_group is not dist.GroupMember.NON_GROUP_MEMBER
    if member:
        dist.group.WORLD = own_group
    forget_meshes()
    _own_groups.append(own_group)
    try:
        yield group
    finally:
        _own_groups.remove(own_group)
        group.leave()
        dist.group.WORLD = default
        forget_meshes()
        if member:
            dist.destroy_process_group(own_group)


def _count_alike() -> None:
    """Let all ranks give the next group one name, a number: a rank outside of the last group has made fewer."""
    counts = current_rank().gather("the groups made so far", str(_world.group_count))
    if counts is not None:
        _world.group_count = max(map(int, counts))


@dataclass
class Group:
    """The groups that a rank makes in one case, and their connections, which it can close all at once."""

    connections_before: dict[int, str]
    groups_before: set[Any]
    left: bool = False

    def shorten_patience(self) -> None:
        """Let this rank's operations end soon from now on if a peer does not answer."""
        for group in set(_world.pg_map) - self.groups_before:
            _set_timeout(_SHORT_PATIENCE, group)

    def leave(self) -> None:
        """Shut all connections down, whatever still holds them, as the kernel does when a process dies.

        Not the pairs of sockets between threads of this process, which lives on: a library may need its pair again.
        """
        if self.left:
            return
        self.left = True
        for fd, link in _connections().items():
            if self.connections_before.get(fd) == link:
                continue
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as connection:
                connection.getpeername()  # raises for a socket that only listens
                if connection.family != socket.AF_UNIX:
                    connection.shutdown(socket.SHUT_RDWR)


def _set_timeout(timeout: timedelta, group: Any) -> None:
    """Set the time limit of a group: in public from torch 2.14 on, which warns of the private function."""
    public = getattr(dist, "set_timeout", None)
    (public or distributed_c10d._set_pg_timeout)(timeout, group)


def _connections() -> dict[int, str]:
    """Return the sockets of this process: the kernel's name of each by its file descriptor."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            link = os.readlink(f"/proc/self/fd/{name}")
            if link.startswith("socket:"):
                found[int(name)] = link
    return found


def error_of(action: Callable[[], Any]) -> Exception | None:
    """Return the exception that the action raises, if any."""
    try:
        action()
    except Exception as error:
        return error
    return None


def collect() -> None:
    """Free what only reference cycles hold: the sockets of a group that was left."""
    gc.collect()


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and those that it was raised from."""
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def root(error: BaseException | None) -> BaseException | None:
    return next((cause for cause in chain(error) if isinstance(cause, InjectedError)), error)


def names_rank(error: BaseException | None, rank: int) -> bool:
    return any(re.search(rf"\brank\s*{rank}\b", str(cause), re.IGNORECASE) for cause in chain(error))


def text_of(error: BaseException | None) -> str:
    return " / ".join(f"{type(cause).__name__}: {str(cause)[:160]}" for cause in chain(error)) or "none"
