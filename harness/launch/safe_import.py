"""Imports that may change nothing but the list of modules: those that a zygote does on behalf of its ranks."""

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

from everyrank import leaks
from everyrank.launch.keeper import children
from everyrank.leaktexts import KINDS

#: Who this process is among the ranks, and what it may use: the zygote knows neither. A module that asks for it when
#: it is imported would remember the wrong answer on every rank.
_A_RANKS_OWN = frozenset(
    name
    for names in (
        "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_RANK ROLE_WORLD_SIZE",
        "MASTER_ADDR MASTER_PORT SLURM_PROCID SLURM_LOCALID OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_LOCAL_RANK",
        "CUDA_VISIBLE_DEVICES HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES",
        "EVERYRANK_NODEID EVERYRANK_RUN PYTEST_CURRENT_TEST",
    )
    for name in names.split()
)

#: What drivers of GPUs open.
_GPUS = ("/dev/nvidia", "/dev/kfd", "/dev/dri")


class Unfit(Exception):
    """Why an import does not belong into a process that ranks are forked from."""


def import_all(names: Iterable[str], announce: Callable[[str], object]) -> None:
    """Import these, those first that import others; ``announce`` each that is not there yet.

    Raises whatever an import raises, or Unfit, and then this process is not fit to be forked.
    """
    with _silent(), warnings.catch_warnings(), _listening() as asked:
        # The ranks that were the first to import a module have shown what it has to say.
        warnings.simplefilter("ignore")
        before, settings = leaks.snapshot(), _settings()
        for name in names:
            if name in sys.modules:
                continue
            announce(name)
            importlib.import_module(name)
            if why := _unfit(before) or _changed(settings):
                raise Unfit(why)
            if asked:
                raise Unfit(f"it asks for {sorted(asked)[0]}")


def _unfit(before: leaks.Snapshot) -> str:
    """What forks would inherit, or would lack, of all that was done since."""
    if len(leaks.names("/proc/self/task")) > 1 or threading.active_count() > 1:
        return "it starts a thread"
    if children():  # Python's own helpers, too
        return "it starts a process"
    for (kind, name), value in leaks.lasting(before).items():
        new = (kind, name) not in before
        if new and (kind == "env" or leaks.is_initial_state((kind, name), value)):
            continue  # every rank that imports it has this, too
        return f"it leaves {KINDS[kind][0]}: {value if new else name}"
    return ""


def _gpus() -> int:
    """How many files of drivers are open."""
    found = 0
    for fd in leaks.names("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found += os.readlink(f"/proc/self/fd/{fd}").startswith(_GPUS)
    return found


def _settings() -> dict[str, object]:
    """What of the interpreter is no test's to find changed."""
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
    """Nobody reads what is printed here, and nobody may wait for input."""
    kept = [os.dup(fd) for fd in (0, 1, 2)]
    nowhere = os.open(os.devnull, os.O_RDWR)
    try:
        for fd in (0, 1, 2):
            os.dup2(nowhere, fd)
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        for fd, was in enumerate(kept):
            os.dup2(was, fd)
        for fd in (nowhere, *kept):
            os.close(fd)


@contextlib.contextmanager
def _listening() -> Iterator[set[str]]:
    """Which of the variables that are a rank's own are asked for; all of Python's ways to ask end there."""
    asked: set[str] = set()
    plain = type(os.environ)

    class Listening(plain):  # type: ignore[valid-type, misc]
        def __getitem__(self, name: str) -> str:
            if name in _A_RANKS_OWN:
                asked.add(name)
            value: str = super().__getitem__(name)
            return value

    os.environ.__class__ = Listening
    try:
        yield asked
    finally:
        os.environ.__class__ = plain
