"""Import modules for the ranks, and refuse those that change more than the list of modules."""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator

from everyrank.devices import device_types
from everyrank.leaks import snapshot
from everyrank.leaks.child_processes import children
from everyrank.leaks.describe import KINDS

#: Variables that differ between ranks: the rank's number, its GPUs and the like. The zygote has none of them. A
#: module that reads one while it is imported would remember the wrong value on every rank.
_OF_ONE_RANK = frozenset(
    name
    for names in (
        "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_RANK ROLE_WORLD_SIZE",
        "MASTER_ADDR MASTER_PORT SLURM_PROCID SLURM_LOCALID OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_LOCAL_RANK",
        "CUDA_VISIBLE_DEVICES HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES",  # and the variables of other device types
        "EVERYRANK_NODEID EVERYRANK_RUN PYTEST_CURRENT_TEST",
    )
    for name in names.split()
)


class Unfit(Exception):
    """An import that is not allowed in a process from which ranks are forked, with the reason."""


def import_all(names: Iterable[str], announce: Callable[[str], object]) -> None:
    """Import these modules in order; ``announce`` each that is not imported yet.

    Raise what an import raises, or Unfit. Ranks must not be forked from this process then.
    """
    with _silent(), warnings.catch_warnings(), _listening() as read:
        # The ranks that imported a module first have shown its warnings.
        warnings.simplefilter("ignore")
        before, settings = snapshot.snapshot(), _settings()
        for name in names:
            if name in sys.modules:
                continue
            announce(name)
            importlib.import_module(name)
            if reason := _unfit(before) or _changed(settings):
                raise Unfit(reason)
            if read:
                raise Unfit(f"it asks for {sorted(read)[0]}")


def _unfit(before: snapshot.Snapshot) -> str:
    """Return what changed since the snapshot that forks would inherit or lack; "" if nothing."""
    if len(snapshot.names("/proc/self/task")) > 1 or threading.active_count() > 1:
        return "it starts a thread"
    if children():  # helpers of Python count, too
        return "it starts a process"
    for (kind, name), value in snapshot.lasting(before).items():
        new = (kind, name) not in before
        if new and (kind == "env" or snapshot.is_initial_state((kind, name), value)):
            continue  # every rank that imports the module has this, too
        return f"it leaves {KINDS[kind][0]}: {value if new else name}"
    return ""


def _gpus() -> int:
    """Return how many files of GPU drivers are open."""
    count = 0
    for fd in snapshot.names("/proc/self/fd"):
        with contextlib.suppress(OSError):
            count += os.readlink(f"/proc/self/fd/{fd}").startswith(device_types.files())
    return count


def _settings() -> dict[str, object]:
    """Return the settings of the interpreter that no test may find changed."""
    return {
        "the use of GPUs": _gpus(),
        "sys.path": list(sys.path),
        "sys.excepthook": sys.excepthook,
        "threading.excepthook": threading.excepthook,
        "sys.displayhook": sys.displayhook,
        "the recursion limit": sys.getrecursionlimit(),
        "the trace function": sys.gettrace(),
        "the profile function": sys.getprofile(),
        "the garbage collector": (gc.isenabled(), gc.get_threshold()),
        "logging": (list(logging.root.handlers), logging.root.level, logging.root.manager.disable),
    }


def _changed(before: dict[str, object]) -> str:
    now = _settings()
    return next((f"it changes {name}" for name, value in before.items() if now[name] != value), "")


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Discard what is printed, and give no input: no person sees this process."""
    kept = [os.dup(fd) for fd in (0, 1, 2)]
    devnull = os.open(os.devnull, os.O_RDWR)
    try:
        for fd in (0, 1, 2):
            os.dup2(devnull, fd)
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        for fd, copy in enumerate(kept):
            os.dup2(copy, fd)
        for fd in (devnull, *kept):
            os.close(fd)


@contextlib.contextmanager
def _listening() -> Iterator[set[str]]:
    """Yield a set that collects the variables of one rank that are read; every way to read ends in __getitem__."""
    read: set[str] = set()
    of_one_rank = _OF_ONE_RANK | {kind.variable for kind in device_types.known()}
    plain = type(os.environ)

    class Listening(plain):  # type: ignore[valid-type, misc]
        def __getitem__(self, name: str) -> str:
            if name in of_one_rank:
                read.add(name)
            value: str = super().__getitem__(name)
            return value

    os.environ.__class__ = Listening
    try:
        yield read
    finally:
        os.environ.__class__ = plain
