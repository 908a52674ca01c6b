"""Leases on GPUs: no two worlds of one user share a GPU unless both say so.

A lease is a lock (flock) on a file named after the physical GPU. Its descriptors go to every rank of the world, and
stay with the ranks' keeper until whatever they started is gone: the kernel ends the lease with the last of them.
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

from everyrank.devices import Gpu
from everyrank.errors import MisuseError
from everyrank.holders import is_gone
from everyrank.leases import LockFile, prepare, tidy
from everyrank.skips import Needs

#: A GPU that is shared is cut into so many pieces: halves, thirds, quarters and sixths come out even.
PIECES = 12

#: Those who wait for a GPU that a warm world keeps get it after this.
QUANTUM = 10.0

#: Whoever waits longer than this says so.
_PATIENCE = 5.0

_POLL = 0.005


@dataclass
class GpuLease:
    """A world's hold on its GPUs."""

    gpus: tuple[Gpu, ...]
    files: list[LockFile]
    turnstiles: list[LockFile] = field(repr=False)
    since: float = field(default_factory=time.monotonic)

    @property
    def fds(self) -> list[int]:
        return [file.fd for file in self.files]

    @property
    def visible(self) -> str:
        return ",".join(gpu.visible_as for gpu in self.gpus)

    def visible_to(self, rank: int) -> str:
        """What a rank sees: all GPUs of its world; but of MIG instances CUDA takes no more than one a process."""
        return self._of(rank).visible_as if self._instances else self.visible

    def device(self, rank: int) -> str:
        return "cuda:0" if self._instances else f"cuda:{rank % len(self.gpus)}"

    def _of(self, rank: int) -> Gpu:
        return self.gpus[rank % len(self.gpus)]

    @property
    def _instances(self) -> bool:
        return any(gpu.is_instance for gpu in self.gpus)

    def is_overdue(self) -> bool:
        """Whether an idle world should let its GPUs go, since somebody has waited for them long enough."""
        return time.monotonic() - self.since >= QUANTUM and any(_is_held(file) for file in self.turnstiles)

    def close(self) -> None:
        """Let go of our part. Not by unlocking: ranks that are still there hold the same lock."""
        for file in self.files:
            file.close()


class GpuLeases:
    """This process's way to GPUs. Never waits while it holds any, so that two processes cannot block each other."""

    def __init__(self, where: Path, tell: Callable[[str], None]) -> None:
        self._where = where
        self._tell = tell
        self._seen: set[str] = set()

    def take(self, needs: Needs, gpus: Sequence[Gpu]) -> GpuLease | None:
        """All that a world needs, at once; waits until they are free. None, where it needs none and there is none."""
        candidates = needs.suitable(gpus) if needs.most else []
        if not candidates and not needs.least:
            return None
        if next(needs.choices(gpus), None) is None:
            raise MisuseError(f"these GPUs do not do for {needs}")  # such a test was skipped before
        prepare(self._where)
        self._seen.update(gpu.uuid for gpu in candidates)
        with self._turn(candidates) as turnstiles:
            lease = GpuLease((), [], [LockFile(one.path) for one in turnstiles])
            warned = False
            while (taken := self._try(needs, candidates)) is None:
                if not warned and time.monotonic() - lease.since > _PATIENCE:
                    self._tell(self._waiting_for(needs, candidates))
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
        """The turnstiles of all GPUs that would do, in one order for everybody. Who waits there holds no GPU; and who
        may use other GPUs only goes through other turnstiles."""
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
        """Lock what is free, keep one set that does, let the rest go."""
        held: dict[str, list[LockFile]] = {}
        chosen: tuple[Gpu, ...] = ()
        try:
            for gpu in candidates:
                if files := self._lock(gpu, needs.share):
                    held[gpu.uuid] = files
            free = [gpu for gpu in candidates if gpu.uuid in held]
            if needs.share < 1:
                # Where others share already, whole GPUs stay free for those who need one.
                free.sort(key=lambda gpu: not self._is_shared(gpu, held[gpu.uuid]))
            wanted = min(needs.most, len(candidates))
            chosen = next((one for one in needs.choices(free) if len(one) == wanted), ())
        finally:
            for uuid, files in held.items():
                if uuid not in {gpu.uuid for gpu in chosen}:
                    for file in files:
                        file.close()
        if not chosen:
            return None
        first = [held[gpu.uuid][0] for gpu in chosen]
        return chosen, first + [file for gpu in chosen for file in held[gpu.uuid][1:]]

    def _lock(self, gpu: Gpu, share: float) -> list[LockFile]:
        """The GPU alone; or with others, and so many pieces of it. Nothing, if that is not to be had now."""
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

    def _is_shared(self, gpu: Gpu, ours: list[LockFile]) -> bool:
        """Whether somebody else has a piece of it. We stand in its turnstile: nobody comes in meanwhile."""
        paths = {file.path for file in ours}
        others = [self._file(gpu.uuid, f"gpu-piece-{number}") for number in range(PIECES)]
        return any(_is_held(file) for file in others if file.path not in paths)

    def _waiting_for(self, needs: Needs, candidates: list[Gpu]) -> str:
        holders = sorted({pid for gpu in candidates if (pid := _holder(self._file(gpu.uuid, "gpu").path))})
        what = f"{needs.least or 1} of {len(candidates)} GPUs" if needs.share >= 1 else f"{needs.share:g} of a GPU"
        told = f"a world waits for {what}"
        return f"{told}, which pytest processes {', '.join(holders)} use" if holders else told

    def _file(self, uuid: str, kind: str) -> LockFile:
        return LockFile(self._where / f"{kind}-{re.sub(r'[^A-Za-z0-9-]', '_', uuid)}")

    def close(self) -> None:
        """Leave no lock file behind, as far as nobody else holds it."""
        kinds = ("turnstile", "gpu", *(f"gpu-piece-{number}" for number in range(PIECES)))
        tidy(
            self._where,
            [file for uuid in self._seen for kind in kinds if (file := self._file(uuid, kind)).path.exists()],
        )


def _is_held(file: LockFile) -> bool:
    """Whether somebody has it, without making it."""
    if not file.path.exists():
        return False
    try:
        return not file.take()
    finally:
        file.close()


def _holder(path: Path) -> str:
    """The pid in a GPU's file, unless its process is gone: what it had started may still hold the GPU."""
    with contextlib.suppress(OSError, ValueError):
        pid = int(path.read_text())
        return "" if is_gone(pid) else str(pid)
    return ""
