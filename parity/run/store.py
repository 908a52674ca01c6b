"""The values of the plain model's run, in a file that all ranks of a host read without a copy.

The first rank of each host writes it, before the parallel run. It never has a name: the other ranks open it as the
writer's, so nothing is left behind, whatever ends the run.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Hashable
from typing import Any

import torch
from everyrank.parity.setup.ranks import Ranks
from everyrank.parity.values.parts import largest

#: How much of the outputs of modules is kept; what is larger is listed as not compared.
MOST_BYTES = 2 << 30

_ALIGNED = 64


Index = dict[Hashable, tuple[int, tuple[int, ...], torch.dtype]]

#: The path and the size of a file, where each value is, the largest of each, and what else is known of the run.
Contents = tuple[str, int, Index, dict[Hashable, float], dict[str, Any]]


class Writer:
    """Append values to the file; each is written once."""

    def __init__(self) -> None:
        self._index: Index = {}
        self._largest: dict[Hashable, float] = {}
        self.notes: dict[str, Any] = {}
        self._file = tempfile.TemporaryFile(prefix="everyrank-parity-")  # noqa: SIM115
        self.outputs = 0

    def write(self, key: Hashable, value: torch.Tensor) -> float:
        """Keep a value; return its largest."""
        value = value.detach().cpu().contiguous()
        start = -(-self._file.tell() // _ALIGNED) * _ALIGNED
        self._file.seek(start)
        self._file.write(value.reshape(-1).view(torch.uint8).numpy().data)
        self._index[key] = start, tuple(value.shape), value.dtype
        most = self._largest[key] = largest(value)
        return most

    def write_output(self, key: Hashable, value: torch.Tensor) -> float | None:
        """Keep an output of a module and return its largest value, if there is room for it."""
        self.outputs += value.numel() * value.element_size()
        return None if self.outputs > MOST_BYTES else self.write(key, value)

    def end(self) -> Contents:
        """End the file; return where other processes of this host find it, and what is in it."""
        size = max(self._file.tell(), _ALIGNED)
        self._file.truncate(size)
        self._file.flush()
        path = f"/proc/{os.getpid()}/fd/{self._file.fileno()}"
        return path, size, self._index, self._largest, self.notes

    def close(self) -> None:
        """Let go of the file: it goes when no rank has it open."""
        self._file.close()


class Store:
    """The values, by key."""

    def __init__(self, contents: Contents) -> None:
        path, size, self._index, self._largest, self.notes = contents
        # Mapped, not read: pages that are never compared cost nothing.
        self._bytes = torch.from_file(path, shared=False, size=size, dtype=torch.uint8)
        self._views: dict[Hashable, torch.Tensor] = {}

    def __contains__(self, key: Hashable) -> bool:
        return key in self._index

    def __getitem__(self, key: Hashable) -> torch.Tensor:
        view = self._views.get(key)
        if view is None:
            start, shape, dtype = self._index[key]
            size = torch.Size(shape).numel() * dtype.itemsize
            view = self._views[key] = self._bytes[start : start + size].view(dtype).view(shape)
        return view

    def largest(self, key: Hashable) -> float:
        """Return the largest absolute value of what is kept under the key."""
        return float(self._largest.get(key, 0.0))

    def get(self, key: Hashable) -> torch.Tensor | None:
        """Return the value, or None if there is none."""
        return self[key] if key in self._index else None


class Shelf:
    """A file while it is written: `writer` on the first rank of the host, None on the others."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks, self._first = ranks, ranks.first_of_host()
        self.writer = Writer() if self._first == ranks.rank else None

    def open(self) -> Store:
        """End the file, and open it on every rank."""
        contents = self._ranks.gather(self.writer.end() if self.writer is not None else None)[self._first]
        store = Store(contents)
        self._ranks.gather(None)  # The writer keeps it open until all have it.
        self.discard()
        return store

    def discard(self) -> None:
        """Let go of the file."""
        if self.writer is not None:
            self.writer.close()
