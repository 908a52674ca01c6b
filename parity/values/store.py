"""The values of the plain model's run, in a file that all ranks of a host read without a copy.

The first rank of each host writes it, before the parallel run. Its name goes as soon as all ranks have opened it, so
nothing is left behind, whatever ends the run.
"""

from __future__ import annotations

import pickle
import shutil
import tempfile
from collections.abc import Hashable
from pathlib import Path
from typing import Any, BinaryIO

import torch
from everyrank.parity.ranks import Ranks

#: How much of the outputs of modules is kept; what is larger is listed as not compared.
MOST_BYTES = 2 << 30

_ALIGNED = 64


class Writer:
    """Append values to the file; each is written once."""

    def __init__(self, folder: Path) -> None:
        self._index: dict[Hashable, tuple[int, tuple[int, ...], torch.dtype]] = {}
        self._largest: dict[Hashable, float] = {}
        self.notes: dict[str, Any] = {}
        self._file: BinaryIO = (folder / "values").open("wb")
        self._folder = folder
        self.outputs = 0

    def write(self, key: Hashable, value: torch.Tensor) -> None:
        """Keep a value."""
        value = value.detach().cpu().contiguous()
        start = -(-self._file.tell() // _ALIGNED) * _ALIGNED
        self._file.seek(start)
        self._file.write(value.reshape(-1).view(torch.uint8).numpy().data)
        self._index[key] = start, tuple(value.shape), value.dtype
        self._largest[key] = float(value.detach().abs().max()) if value.numel() else 0.0

    def write_output(self, key: Hashable, value: torch.Tensor) -> bool:
        """Keep an output of a module, if there is room for it."""
        self.outputs += value.numel() * value.element_size()
        if self.outputs > MOST_BYTES:
            return False
        self.write(key, value)
        return True

    def close(self) -> None:
        """End the file."""
        self._file.truncate(max(self._file.tell(), _ALIGNED))
        self._file.close()
        (self._folder / "index").write_bytes(pickle.dumps((self._index, self._largest, self.notes)))

    def abandon(self) -> None:
        """Let go of the file, whether or not it has ended."""
        self._file.close()


class Store:
    """The values, by key."""

    def __init__(self, folder: Path) -> None:
        path = folder / "values"
        self._index, self._largest, self.notes = pickle.loads((folder / "index").read_bytes())
        # Mapped, not read: pages that are never compared cost nothing.
        self._bytes = torch.from_file(str(path), shared=False, size=path.stat().st_size, dtype=torch.uint8)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._index

    def __getitem__(self, key: Hashable) -> torch.Tensor:
        start, shape, dtype = self._index[key]
        size = torch.Size(shape).numel() * dtype.itemsize
        return self._bytes[start : start + size].view(dtype).view(shape)

    def largest(self, key: Hashable) -> float:
        """Return the largest absolute value of what is kept under the key."""
        return float(self._largest.get(key, 0.0))

    def get(self, key: Hashable) -> torch.Tensor | None:
        """Return the value, or None if there is none."""
        return self[key] if key in self._index else None


class Shelf:
    """The folder of one file while it is written: `writer` on the first rank of the host, None on the others."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        first = ranks.first_of_host()
        mine = Path(tempfile.mkdtemp(prefix="everyrank-parity-")) if first == ranks.rank else None
        self._folder = ranks.gather(mine)[first]
        self._mine = mine
        self.writer = Writer(mine) if mine is not None else None

    def open(self) -> Store:
        """Close the file for writing, open it on every rank, and take its name away."""
        if self.writer is not None:
            self.writer.close()
        self._ranks.gather(None)
        store = Store(self._folder)
        self._ranks.gather(None)
        self.discard()
        return store

    def discard(self) -> None:
        """Remove the folder."""
        if self.writer is not None:
            self.writer.abandon()
        if self._mine is not None:
            shutil.rmtree(self._mine, ignore_errors=True)
