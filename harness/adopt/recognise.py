"""Recognises torch's test classes for many processes, and decides whether everyrank's ranks can run their tests."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

TORCHS_MODULE = "torch.testing._internal.common_distributed"

#: torch's own methods for starting and judging processes. A class that replaces one of them has its own harness.
STEPS_OF_SPAWNED = ("_start_processes", "_join_processes", "_check_return_codes", "run_test")
STEPS_OF_CONTINUOUS = ("_spawn_processes", "_worker_loop", "_run_test_given_id", "_ensure_processes_spawned")

SPAWNED, CONTINUOUS, FUNCTION = "spawned", "continuous", "function"


@dataclass(frozen=True)
class Adopted:
    """A test that runs on everyrank's ranks."""

    kind: str
    size: int
    timeout: float | None
    """The deadline of torch's harness; None if the test knows none."""


@dataclass(frozen=True)
class Skipped:
    """A test that no rank would run on this host."""

    reason: str


@dataclass(frozen=True)
class NotAdopted:
    """A test that runs as without ``--adopt``."""

    reason: str
    uses_torch: bool = True  # whether its class is one of torch's test classes


Finding = Adopted | Skipped | NotAdopted

_NOT_TORCHS = NotAdopted("not written on torch.testing._internal", uses_torch=False)


def recognise(cls: type | None, name: str) -> Finding:
    """Decide about the test method of this name. Instantiate the class, as torch does, to read its world size."""
    home: Any = sys.modules.get(TORCHS_MODULE)  # a class can only be torch's if its module has been imported
    if home is None or cls is None:
        return _NOT_TORCHS
    threaded = getattr(home, "MultiThreadedTestCase", ())
    if issubclass(cls, threaded):
        return NotAdopted("its ranks are threads of one process (MultiThreadedTestCase): there is nothing to launch")
    if issubclass(cls, home.MultiProcessTestCase):
        return _spawned(home, cls, name)
    continuous: Any = getattr(home, "MultiProcContinuousTest", None) or getattr(home, "MultiProcContinousTest", ())
    if issubclass(cls, continuous):
        return _continuous(home, continuous, cls, name)
    if any(base.__module__.startswith("torch.testing._internal") for base in cls.__mro__):
        return NotAdopted("it runs in one process")
    return _NOT_TORCHS


def _spawned(home: Any, cls: Any, name: str) -> Finding:
    if replaced := _replaced(cls, home.MultiProcessTestCase, STEPS_OF_SPAWNED):
        return NotAdopted(f"it has its own {replaced}(), by which its processes are started or judged")
    try:
        size = int(cls(name).world_size)
    except Exception as error:
        return NotAdopted(f"its world_size cannot be read: {type(error).__name__}: {error}")
    return _sized(SPAWNED, size, _timeout(home, name))


def _continuous(home: Any, base: Any, cls: Any, name: str) -> Finding:
    missing = [step for step in STEPS_OF_CONTINUOUS if not hasattr(base, step)]
    if missing:
        return NotAdopted(f"this torch's {base.__name__} has no {missing[0]}()")
    if replaced := _replaced(cls, base, STEPS_OF_CONTINUOUS):
        return NotAdopted(f"it has its own {replaced}(), by which its processes are started or given tests")
    try:
        size = int(cls._get_world_size(_device_type(cls)))
    except Exception as error:
        if type(error).__name__ == "SkipTest":
            return Skipped(str(error))
        return NotAdopted(f"its world_size cannot be read: {type(error).__name__}: {error}")
    return _sized(CONTINUOUS, size, _timeout(home, name))


def _sized(kind: str, size: int, timeout: float) -> Finding:
    if size < 1:
        return Skipped(f"its world_size is {size} on this machine, so no rank would run it")
    return Adopted(kind, size, timeout)


def _timeout(home: Any, name: str) -> float:
    """Return torch's own deadline for the test."""
    return float(home.get_timeout(name))


def _device_type(cls: Any) -> str:
    """Return the class's device type: from a classmethod, a text, or a property that needs only the class."""
    attribute = next((vars(base)["device_type"] for base in cls.__mro__ if "device_type" in vars(base)), "cpu")
    if isinstance(attribute, property) and attribute.fget is not None:
        return str(attribute.fget(cls))
    value = getattr(cls, "device_type", attribute)
    return str(value() if callable(value) else value)


def _replaced(cls: type, base: type, steps: tuple[str, ...]) -> str:
    """Return the first of these methods that a class between the test and torch's base overrides."""
    between = cls.__mro__[: cls.__mro__.index(base)]
    for step in steps:
        if any(step in vars(cls) for cls in between if cls is not base):
            return step
    return ""


def expects_death(cls: type | None) -> bool:
    """Return whether the class's setUp lists exit codes that torch's harness accepts."""
    names: set[str] = set()
    for base in cls.__mro__ if cls is not None else ():
        code = getattr(vars(base).get("setUp"), "__code__", None)
        if base.__module__ != TORCHS_MODULE and code is not None:
            names |= set(code.co_names)
    return bool(names & {"special_return_code_checks", "skip_return_code_checks"})
