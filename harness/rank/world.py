"""A world as one of its ranks sees it."""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from everyrank.errors import MisuseError
from everyrank.model.ranks import ranks_text
from everyrank.stack.frames import users_frame
from everyrank.wire import surrogates

if TYPE_CHECKING:
    from everyrank.wire.messages import Met

#: A part of a URL with the scheme ``env``: what the ranks meet for, so that different uses have different keys.
RENDEZVOUS_NAME = "everyrank"


class MeetOthers(Protocol):
    """Brings a digest and a text to a meeting point, and waits for all ranks there."""

    def __call__(self, point: str, digest: str, text: str, looks: bool = False) -> Met: ...


@dataclass(frozen=True)
class World:
    """The processes of one test, seen from one of them. The fixture ``world`` provides it."""

    rank: int
    size: int
    local_rank: int
    device: str
    backend: str
    seed: int
    """This rank's own seed: distinct on every rank, the same whenever this test runs."""
    _folder: str = field(repr=False)
    _meet: MeetOthers = field(repr=False)
    _shared: bool = field(default=True, repr=False)
    faults: tuple[str, ...] = field(default=(), repr=False)
    """The faults that the mark ``faults`` plans for this run of the test."""

    @property
    def folder(self) -> str:
        """A folder that all ranks of this test share, empty at its start and removed at its end."""
        __tracebackhide__ = True
        if not self._shared:
            raise MisuseError(
                "world.folder: the hosts of this world share no folder. Set TMPDIR, for all processes, to a folder "
                "that they share, or use world.host_folder"
            )
        return self.host_folder

    @property
    def host_folder(self) -> str:
        """The same for the ranks on one host: hosts that share no folder have one each."""
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        return self._folder

    @property
    def init_method(self) -> str:
        """A rendezvous for this test's own ``init_process_group`` or ``init_rpc``: ``file://``, or ``env://``."""
        return self.rendezvous("rendezvous") if self._meets_by_files else "env://"

    @property
    def _meets_by_files(self) -> bool:
        """Whether the ranks can meet by files in their folder: torch takes no path that is not valid Unicode."""
        return self._shared and surrogates.hide(self._folder) == self._folder

    def beside(self, name: str) -> str:
        """Return a path beside the test's folder: what lies there outlives the test."""
        return f"{self._folder}.{name}"

    def rendezvous(self, name: str, outlives: bool = False) -> str:
        """Return a URL at which the ranks meet, for one use; whether that ``outlives`` the test."""
        if not self._meets_by_files:
            return f"env://?{RENDEZVOUS_NAME}={name}"
        return f"file://{self.beside(name) if outlives else os.path.join(self.folder, name)}"

    def barrier(self) -> None:
        """Wait until every rank is here. Needs no process group."""
        __tracebackhide__ = True
        self._reach("barrier()", "", "")

    def all_agree(self, value: Any) -> None:
        """Fail, on every rank, unless all ranks brought an equal value (tensors: bit for bit)."""
        __tracebackhide__ = True
        met = self._reach("all_agree()", digest(value), _short(value))
        if len(set(met.digests)) > 1:
            groups: dict[str, list[int]] = {}
            for rank, value_digest in enumerate(met.digests):
                groups.setdefault(value_digest, []).append(rank)
            smallest_first = sorted(groups.values(), key=lambda ranks: (len(ranks), ranks))
            lines = [f"  {ranks_text(ranks)}: {met.texts[ranks[0]]}" for ranks in smallest_first]
            raise AssertionError("ranks disagree\n" + "\n".join(lines))

    def somebody_left(self) -> bool:
        """Wait until every rank is at this point or past it; return whether a rank went past it or ended its test.

        A rank that went past it and waits somewhere else goes on waiting there.
        """
        met = self._meet("somebody_left()", "", "", looks=True)
        return bool(met.missing) or len(set(met.points)) > 1

    def _reach(self, call: str, brought: str, text: str) -> Met:
        __tracebackhide__ = True
        frame = users_frame(2)
        met = self._meet(f"{call} at {frame}", brought, text)
        if met.missing:
            raise AssertionError(f"{ranks_text(met.missing)} ended without coming to {call} at {frame}")
        kinds = {point.split(" at ")[0] for point in met.points}
        if len(kinds) > 1:
            lines = [f"  rank {rank}: {point}" for rank, point in enumerate(met.points)]
            raise AssertionError("ranks met at different points\n" + "\n".join(lines))
        return met


_current: list[World] = []  # a rank is in one world at a time; empty in the controller


def current_world() -> World:
    """Return the world that this process is a rank of; for code that cannot ask for a fixture."""
    __tracebackhide__ = True
    if not _current:
        raise MisuseError(
            "this process is not a rank of a world: mark the test with @pytest.mark.world(n), "
            "or ask for the fixture `world`"
        )
    return _current[-1]


def enter(world: World) -> None:
    """Make this the world of the rank's process."""
    _current[:] = [world]


def digest(value: Any) -> str:
    """Return a digest that is equal for equal values on different ranks, whatever objects hold them."""
    state = hashlib.sha256()
    _feed(state.update, value)
    return state.hexdigest()


def _feed(update: Callable[[bytes], None], value: Any) -> None:
    if hasattr(value, "untyped_storage") and hasattr(value, "detach"):
        _feed_tensor(update, value.detach())
    elif isinstance(value, dict):
        update(f"dict {len(value)} ".encode())
        for key in sorted(value, key=repr):
            _feed(update, key)
            _feed(update, value[key])
    elif isinstance(value, (list, tuple)):
        update(f"{type(value).__name__} {len(value)} ".encode())
        for member in value:
            _feed(update, member)
    elif isinstance(value, (set, frozenset)):
        _feed(update, sorted(map(repr, value)))
    else:
        update(re.sub(r" at 0x[0-9a-f]+", "", repr(value)).encode("utf-8", "backslashreplace"))


def _feed_tensor(update: Callable[[bytes], None], tensor: Any) -> None:
    """Feed a tensor without numpy, which torch does not require and which has no bfloat16."""
    layout = str(tensor.layout)
    update(f"tensor {tensor.dtype} {tuple(tensor.shape)} {layout} ".encode())
    if tensor.is_meta:
        return
    if layout in _SPARSE_PARTS:
        whole = tensor.coalesce() if layout == "torch.sparse_coo" else tensor
        for part in _SPARSE_PARTS[layout]:
            _feed_tensor(update, getattr(whole, part)())
        return
    plain = tensor.cpu().resolve_conj().resolve_neg().contiguous()
    update(ctypes.string_at(plain.data_ptr(), plain.numel() * plain.element_size()) if plain.numel() else b"")


#: The methods that return the parts of a sparse tensor, by layout.
_SPARSE_PARTS = {
    "torch.sparse_coo": ("indices", "values"),
    **dict.fromkeys(("torch.sparse_csr", "torch.sparse_bsr"), ("crow_indices", "col_indices", "values")),
    **dict.fromkeys(("torch.sparse_csc", "torch.sparse_bsc"), ("ccol_indices", "row_indices", "values")),
}


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 500 else text[:500] + " ..."
