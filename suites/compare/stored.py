"""Store reference runs in the folder of the test run: each is computed once, whichever ranks and subjects need it.

A case that runs alone computes its reference itself.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
from collections.abc import Callable, Iterator
from typing import Any

from everyrank.errors import MisuseError
from everyrank.rank.context import current_rank
from everyrank.suites.compare.trajectory import Trajectory, from_bytes, to_bytes

#: A run with more data is not stored: it has one or two steps with large tensors, which cost less than the file.
MOST_BYTES = 1 << 20


def stored(compute: Callable[[Any], Trajectory]) -> Callable[[Any], Trajectory]:
    """Decorate a function of a plan: look for its run in this process, then in the folder of the test run."""

    @functools.cache
    def find(plan: Any) -> Trajectory:
        try:
            folder = current_rank().run_folder
        except MisuseError:
            return compute(plan)
        # The repr of a plan has everything that its run depends on.
        digest = hashlib.sha256(f"{compute.__name__} {plan!r}".encode()).hexdigest()
        file = os.path.join(folder, f"reference-{digest}")
        return _read(file) or _compute_once(file, lambda: compute(plan))

    return find


def _read(file: str) -> Trajectory | None:
    try:
        with open(file, "rb") as stream:
            return from_bytes(stream.read())
    except FileNotFoundError:
        return None


def _compute_once(file: str, compute: Callable[[], Trajectory]) -> Trajectory:
    """Compute a run and store it, unless another rank has done so meanwhile."""
    with _locked(f"{file}.lock"):
        if stored_run := _read(file):
            return stored_run
        run = compute()
        if run.bytes <= MOST_BYTES:
            with open(f"{file}.part", "wb") as stream:
                stream.write(to_bytes(run))
            os.rename(f"{file}.part", file)  # another rank reads the whole run, or none
        return run


@contextlib.contextmanager
def _locked(file: str) -> Iterator[None]:
    """Hold a lock among all ranks of the run. The kernel frees it when its owner dies."""
    fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
