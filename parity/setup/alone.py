"""A smaller world inside of a larger one: of one rank, where nothing is parallel, or of the first few."""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Any

import torch
import torch.distributed as dist
from everyrank.parity.errors import Defect, Unusable, defect
from everyrank.parity.values.lines import argument_of, with_line
from torch.distributed import distributed_c10d as c10d

#: Takes a value out of a lone world.
Take = Callable[[Any], None]

#: Names of groups are numbers. Those inside count from here: far from those outside, and the same each time, since
#: torch keeps by the shape of a mesh what it once knew of its groups.
_FIRST = 1_000_000


@dataclass(frozen=True)
class Seat:
    """A rank of a smaller world, and the file by which its ranks meet; a lone one meets nobody."""

    rank: int = 0
    size: int = 1
    meeting: str = ""

    def store(self) -> dist.Store:
        return dist.FileStore(self.meeting, self.size) if self.meeting else dist.HashStore()


@contextlib.contextmanager
def lone_world(seat: Seat = Seat()) -> Iterator[None]:
    """Make this process the only rank there is, for code that asks inside, or one of a few. No other takes part.

    Groups that are made inside are destroyed at the end. A group or a mesh from outside is still that of all ranks.
    """
    world: Any = c10d._world
    outer, known, hook = world.default_pg, set(world.pg_names), sys.excepthook
    kept = world.group_count, c10d._backend, c10d._default_pg_init_method
    c10d._update_default_pg(None)  # torch refuses a second default group
    world.group_count = _FIRST
    try:
        dist.init_process_group("gloo", store=seat.store(), rank=seat.rank, world_size=seat.size)
        yield
    finally:
        made = [group for group in world.pg_names if group not in known]
        c10d._update_default_pg(outer)
        for group in reversed(made):
            dist.destroy_process_group(group)
        world.group_count, c10d._backend, c10d._default_pg_init_method = kept
        sys.excepthook = hook


class FailedAlone(Exception):
    """The user's code has failed in a lone world; the message says how, and where."""

    def __init__(self, text: str, caller: str = "") -> None:
        super().__init__(text, caller)
        self.text, self.caller = text, caller

    def __str__(self) -> str:
        return self.text


def in_lone_world(run: Callable[[Take], None], take: Take, seat: Seat = Seat()) -> None:
    """Run something in a lone world, or on a seat of a small one, and take what it gives, in order.

    It runs in a process of its own. Code may keep what it has once asked of the world, as under `functools.cache`:
    what the lone world answers is forgotten with that process. Beside an accelerator, whose threads survive no fork,
    it runs in this one.
    """
    if torch.accelerator.is_available():
        with lone_world(seat):
            run(take)
        return
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(reading)
            with os.fdopen(writing, "wb") as pipe:
                _give(run, pipe, seat)
        finally:
            os._exit(0)  # nothing may go on as the rank itself, of which this is a copy
    os.close(writing)
    try:
        with os.fdopen(reading, "rb") as pipe:
            for kind, value in _given(pipe):
                if kind == "failed":
                    raise value
                take(value)
    finally:
        os.waitpid(child, 0)


def _give(run: Callable[[Take], None], pipe: IO[bytes], seat: Seat) -> None:
    """Run something in this process, which ends then, and send what it gives."""
    torch.set_num_threads(1)  # no thread of a pool survives a fork
    try:
        with lone_world(seat):
            run(lambda value: pickle.dump(("value", value), pipe))
        pickle.dump(("end", None), pipe)
    except BaseException as error:  # sys.exit() and pytest.skip(), too
        pickle.dump(("failed", _sendable(error)), pipe)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()


def _given(pipe: IO[bytes]) -> Iterator[tuple[str, Any]]:
    """Yield what the process sends, up to its end."""
    while True:
        try:
            kind, value = pickle.load(pipe)
        except EOFError:
            raise FailedAlone("its process has ended") from None
        if kind == "end":
            return
        yield kind, value


def _sendable(error: BaseException) -> Exception:
    if isinstance(error, Unusable | Defect):
        return error
    return defect(error) or FailedAlone(with_line(error), argument_of(error))
