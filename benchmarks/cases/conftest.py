"""A stopwatch around collection and the run loop, outside of all other plugins' hooks.

It counts the processor time of all processes: those whose parent has gone become children of this one.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import orphans
import pytest

_took: dict[str, float] = {"passed": 0}


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, Any, Any]:
    began = time.perf_counter()
    _took["start"] = time.time() - float(os.environ["BENCHMARK_BEGAN"])
    try:
        return (yield)
    finally:
        _took["collection"] = time.perf_counter() - began


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtestloop() -> Generator[None, Any, Any]:
    orphans.adopt()
    began, used = time.perf_counter(), _used()
    try:
        return (yield)
    finally:
        _took["loop"] = time.perf_counter() - began
        orphans.wait()
        _took["processor"] = _used() - used


def _used() -> float:
    """Return the processor time of this process, and of its children that it has waited for, in seconds."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" and report.passed:
        _took["passed"] += 1


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workerinput"):
        return  # the process that a person started measures
    Path(os.environ["BENCHMARK_STOPWATCH"]).write_text(json.dumps(_took))


# --- samples of a long run -------------------------------------------------------------------------

_samples: list[dict[str, float]] = []
_finished = 0
_settled: float | None = None  # when the tests had finished that include the imports of a run


def pytest_runtest_logfinish() -> None:
    """Sample, in the controller, the time and all processes' memory and descriptors, after a number of tests."""
    global _finished, _settled
    _finished += 1
    if _finished == int(os.environ.get("BENCHMARK_SETTLED", "0")):
        _settled = time.perf_counter()
    elif _settled is not None:
        _took["later"] = time.perf_counter() - _settled
    path, every = os.environ.get("BENCHMARK_SAMPLES"), int(os.environ.get("BENCHMARK_EVERY", "50"))
    if path is None or _finished % every:
        return
    keepers = orphans.children(os.getpid())
    ranks = [rank for keeper in keepers for rank in orphans.children(keeper)]
    sample: dict[str, float] = {"tests": _finished, "clock": time.perf_counter(), "used": time.process_time()}
    for name, pids in (("controller", [os.getpid()]), ("keeper", keepers), ("rank", ranks)):
        held = [_held(pid) for pid in pids]
        sample[f"{name} memory"] = max((memory for memory, _ in held), default=0)
        sample[f"{name} descriptors"] = max((descriptors for _, descriptors in held), default=0)
    _samples.append(sample)
    Path(path).write_text(json.dumps(_samples))


def _held(pid: int) -> tuple[int, int]:
    """Return the resident bytes and the open descriptors of a process; 0 if it is just ending."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir(f"/proc/{pid}/fd"))
    except (OSError, IndexError):
        return 0, 0
