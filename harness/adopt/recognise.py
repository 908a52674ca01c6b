"""Which test classes are torch's way of running on many processes, and whether our ranks can run them."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

HOME = "torch.testing._internal.common_distributed"

#: torch's own steps of starting and judging processes. Who replaces one of them has a harness of his own.
STEPS_OF_SPAWNED = ("_start_processes", "_join_processes", "_check_return_codes", "run_test")
STEPS_OF_CONTINUOUS = ("_spawn_processes", "_worker_loop", "_run_test_given_id", "_ensure_processes_spawned")

SPAWNED, CONTINUOUS = "spawned", "continuous"


@dataclass(frozen=True)
class Adopted:
    """A test that runs on our ranks."""

    kind: str
    size: int
    timeout: float


@dataclass(frozen=True)
class Skipped:
    """A test that no rank would run on this machine."""

    why: str


@dataclass(frozen=True)
class Left:
    """A test that runs as it does without ``--adopt``. ``theirs`` tells whether it is on torch's classes at all."""

    why: str
    theirs: bool = True


Finding = Adopted | Skipped | Left

_NOT_THEIRS = Left("not written on torch.testing._internal", theirs=False)


def recognise(cls: type | None, name: str) -> Finding:
    """What to do with the test method of this name. Instantiates the class, as torch does to learn its size."""
    home: Any = sys.modules.get(HOME)  # a class can only be torch's if its module has been imported
    if home is None or cls is None:
        return _NOT_THEIRS
    threaded = getattr(home, "MultiThreadedTestCase", ())
    if issubclass(cls, threaded):
        return Left("its ranks are threads of one process (MultiThreadedTestCase): there is nothing to launch")
    if issubclass(cls, home.MultiProcessTestCase):
        return _spawned(home, cls, name)
    continuous: Any = getattr(home, "MultiProcContinuousTest", None) or getattr(home, "MultiProcContinousTest", ())
    if issubclass(cls, continuous):
        return _continuous(home, continuous, cls, name)
    if any(base.__module__.startswith("torch.testing._internal") for base in cls.__mro__):
        return Left("it runs in one process")
    return _NOT_THEIRS


def _spawned(home: Any, cls: Any, name: str) -> Finding:
    if replaced := _replaced(cls, home.MultiProcessTestCase, STEPS_OF_SPAWNED):
        return Left(f"it has its own {replaced}(), by which its processes are started or judged")
    try:
        size = int(cls(name).world_size)
    except Exception as error:
        return Left(f"its world_size cannot be had: {type(error).__name__}: {error}")
    return _sized(SPAWNED, size, _timeout(home, name))


def _continuous(home: Any, base: Any, cls: Any, name: str) -> Finding:
    missing = [step for step in STEPS_OF_CONTINUOUS if not hasattr(base, step)]
    if missing:
        return Left(f"this torch's {base.__name__} has no {missing[0]}()")
    if replaced := _replaced(cls, base, STEPS_OF_CONTINUOUS):
        return Left(f"it has its own {replaced}(), by which its processes are started or given tests")
    try:
        size = int(cls._get_world_size(_device_type(cls)))
    except Exception as error:
        if type(error).__name__ == "SkipTest":
            return Skipped(str(error))
        return Left(f"its world_size cannot be had: {type(error).__name__}: {error}")
    return _sized(CONTINUOUS, size, _timeout(home, name))


def _sized(kind: str, size: int, timeout: float) -> Finding:
    if size < 1:
        return Skipped(f"its world_size is {size} on this machine, so that no rank would run it")
    return Adopted(kind, size, timeout)


def _timeout(home: Any, name: str) -> float:
    """torch's own deadline for the test."""
    return float(home.get_timeout(name))


def _device_type(cls: Any) -> str:
    """A classmethod, a property that asks for nothing but the class, or a text."""
    found = next((vars(base)["device_type"] for base in cls.__mro__ if "device_type" in vars(base)), "cpu")
    if isinstance(found, property) and found.fget is not None:
        return str(found.fget(cls))
    said = getattr(cls, "device_type", found)
    return str(said() if callable(said) else said)


def _replaced(cls: type, base: type, steps: tuple[str, ...]) -> str:
    """The first of these steps that a class between the test and torch's base defines anew."""
    between = cls.__mro__[: cls.__mro__.index(base)]
    for step in steps:
        if any(step in vars(one) for one in between if one is not base):
            return step
    return ""


def expects_death(cls: type | None) -> bool:
    """Whether its setUp lists exit codes that torch's harness is to take for well."""
    names: set[str] = set()
    for base in cls.__mro__ if cls is not None else ():
        code = getattr(vars(base).get("setUp"), "__code__", None)
        if base.__module__ != HOME and code is not None:
            names |= set(code.co_names)
    return bool(names & {"special_return_code_checks", "skip_return_code_checks"})
