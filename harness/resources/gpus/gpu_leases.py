"""Leases on GPUs: no two worlds of one user share a GPU unless both ask to share.

A lease is a lock (flock) on a file named after the physical GPU. Every rank of the world gets its descriptors, and
the ranks' keeper holds them until all that the ranks started is gone. The kernel ends the lease with the last of
them.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from everyrank.devices import device_types
from everyrank.devices.protocol import Gpu
from everyrank.errors import MisuseError
from everyrank.resources.gpus.needs import Needs
from everyrank.resources.gpus.world_gpus import GpusOfHost
from everyrank.resources.holders import is_gone
from everyrank.resources.leases import LockFile, prepare, tidy

#: A shared GPU has this many pieces, so that halves, thirds, quarters and sixths are whole numbers of them.
PIECES = 12

#: A warm world gives up a GPU that another test waits for after this many seconds.
QUANTUM = 10.0

#: A wait longer than this many seconds is reported.
_PATIENCE = 5.0

_POLL = 0.005


@dataclass
class GpuLease:
    """The GPUs of a world, with the locked files that hold them."""

    gpus: tuple[Gpu, ...]
    files: list[LockFile]
    turnstiles: list[LockFile] = field(repr=False)
    since: float = field(default_factory=time.monotonic)

    @property
    def fds(self) -> list[int]:
        return [file.fd for file in self.files]

    def visible_to(self, rank: int) -> dict[str, str]:
        return GpusOfHost(self.gpus).visible_to(rank)

    def device(self, rank: int) -> str:
        return GpusOfHost(self.gpus).device(rank)

    def is_overdue(self) -> bool:
        """Return whether an idle world should release its GPUs, since another test has waited long enough."""
        return time.monotonic() - self.since >= QUANTUM and any(_is_held(file) for file in self.turnstiles)

    def close(self) -> None:
        """Close the files without unlocking them: ranks that still live hold the same locks."""
        for file in self.files:
            file.close()


class GpuLeases:
    """Takes leases for this process. It never waits while it holds one: so two processes cannot block each other."""

    def __init__(self, folder: Path, notify: Callable[[str], None]) -> None:
        self._folder = folder
        self._notify = notify
        self._seen: set[str] = set()

    def take(self, needs: Needs, gpus: Sequence[Gpu]) -> GpuLease | None:
        """Take the GPUs of a world as soon as all are free. Return None if it needs none and none exists."""
        candidates = needs.suitable(gpus) if needs.most else []
        if not candidates and not needs.least:
            return None
        if next(needs.choices(gpus), None) is None:
            raise MisuseError(f"these GPUs do not meet {needs}")  # such a test was skipped before
        prepare(self._folder)
        self._seen.update(gpu.uuid for gpu in candidates)
        with self._turn(candidates) as turnstiles:
            lease = GpuLease((), [], [LockFile(file.path) for file in turnstiles])
            warned = False
            while (taken := self._try(needs, candidates)) is None:
                if not warned and time.monotonic() - lease.since > _PATIENCE:
                    self._notify(self._waiting_for(needs, candidates))
                    warned = True
                time.sleep(_POLL)
            lease.gpus, lease.files = taken
            lease.since = time.monotonic()
        for number, file in enumerate(lease.files):
            if number < len(lease.gpus):
                os.pwrite(file.fd, f"{os.getpid():<20}".encode(), 0)
        return lease

    @contextlib.contextmanager
    def _turn(self, candidates: list[Gpu]) -> Iterator[list[LockFile]]:
        """Pass the turnstiles of all candidates, in the same order in every process.

        A process that waits there holds no GPU. Processes with other candidates pass other turnstiles.
        """
        turnstiles = [self._file(uuid, "turnstile") for uuid in sorted(gpu.uuid for gpu in candidates)]
        try:
            for turnstile in turnstiles:
                while not turnstile.take():
                    time.sleep(_POLL)
            yield turnstiles
        finally:
            for turnstile in turnstiles:
                turnstile.close()

    def _try(self, needs: Needs, candidates: list[Gpu]) -> tuple[tuple[Gpu, ...], list[LockFile]] | None:
        """Lock all free GPUs, keep one set that meets the needs, and release the rest."""
        held: dict[str, list[LockFile]] = {}
        gpus: tuple[Gpu, ...] = ()
        try:
            for gpu in candidates:
                if files := self._lock(gpu, needs.share):
                    held[gpu.uuid] = files
            free = [gpu for gpu in candidates if gpu.uuid in held]
            if needs.share < 1:
                # Prefer GPUs that others share already, so that whole GPUs stay free.
                free.sort(key=lambda gpu: not self._is_shared(gpu, held[gpu.uuid]))
            size = min(needs.most, len(candidates))
            gpus = next((choice for choice in needs.choices(free) if len(choice) == size), ())
        finally:
            for uuid, files in held.items():
                if uuid not in {gpu.uuid for gpu in gpus}:
                    for file in files:
                        file.close()
        if not gpus:
            return None
        first = [held[gpu.uuid][0] for gpu in gpus]
        return gpus, first + [file for gpu in gpus for file in held[gpu.uuid][1:]]

    def _lock(self, gpu: Gpu, share: float) -> list[LockFile]:
        """Lock a whole GPU, or a share of it as pieces. Return no files if that is not free now."""
        whole = self._file(gpu.uuid, "gpu")
        taken = [whole]
        if share >= 1:
            if whole.take():
                return taken
        elif whole.take(shared=True):
            pieces = math.ceil(share * PIECES - 1e-9)
            for number in range(PIECES):
                if len(taken) > pieces:
                    break
                piece = self._file(gpu.uuid, f"gpu-piece-{number}")
                if piece.take():
                    taken.append(piece)
                else:
                    piece.close()
            if len(taken) > pieces:
                return taken
        for file in taken:
            file.close()
        return []

    def _is_shared(self, gpu: Gpu, own_files: list[LockFile]) -> bool:
        """Return whether another process holds a piece of a GPU. While we hold its turnstile, none can come."""
        paths = {file.path for file in own_files}
        others = [self._file(gpu.uuid, f"gpu-piece-{number}") for number in range(PIECES)]
        return any(_is_held(file) for file in others if file.path not in paths)

    def _waiting_for(self, needs: Needs, candidates: list[Gpu]) -> str:
        holders = sorted({pid for gpu in candidates if (pid := _holder(self._file(gpu.uuid, "gpu").path))})
        kind = device_types.find(needs.type)
        amount = f"{needs.least or 1} of {len(candidates)} {kind.title}s"
        if needs.share < 1:
            amount = f"{needs.share:g} of {kind.titled}"
        text = f"a world waits for {amount}"
        return f"{text}, which pytest processes {', '.join(holders)} use" if holders else text

    def _file(self, uuid: str, kind: str) -> LockFile:
        return LockFile(self._folder / f"{kind}-{re.sub(r'[^A-Za-z0-9-]', '_', uuid)}")

    def close(self) -> None:
        """Remove all lock files that no other process holds."""
        kinds = ("turnstile", "gpu", *(f"gpu-piece-{number}" for number in range(PIECES)))
        tidy(
            self._folder,
            [file for uuid in self._seen for kind in kinds if (file := self._file(uuid, kind)).path.exists()],
        )


def _is_held(file: LockFile) -> bool:
    """Return whether a lock file is held, without making the file."""
    if not file.path.exists():
        return False
    try:
        return not file.take()
    finally:
        file.close()


def _holder(path: Path) -> str:
    """Return the pid in a GPU's file, or "" if that process is gone; what it started may still hold the GPU."""
    with contextlib.suppress(OSError, ValueError):
        pid = int(path.read_text())
        return "" if is_gone(pid) else str(pid)
    return ""
