"""A stopwatch around collection and the run loop, outside of all other plugins' hooks."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

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
    began = time.perf_counter()
    try:
        return (yield)
    finally:
        _took["loop"] = time.perf_counter() - began


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" and report.passed:
        _took["passed"] += 1


def pytest_sessionfinish() -> None:
    Path(os.environ["BENCHMARK_STOPWATCH"]).write_text(json.dumps(_took))


# --- samples of a long run -------------------------------------------------------------------------

_samples: list[dict[str, float]] = []
_finished = 0


def pytest_runtest_logfinish() -> None:
    """Sample, in the controller, the time and all processes' memory and descriptors, after a number of tests."""
    global _finished
    _finished += 1
    path, every = os.environ.get("BENCHMARK_SAMPLES"), int(os.environ.get("BENCHMARK_EVERY", "50"))
    if path is None or _finished % every:
        return
    keepers = _children(os.getpid())
    ranks = [rank for keeper in keepers for rank in _children(keeper)]
    sample: dict[str, float] = {"tests": _finished, "clock": time.perf_counter(), "used": time.process_time()}
    for name, pids in (("controller", [os.getpid()]), ("keeper", keepers), ("rank", ranks)):
        held = [_held(pid) for pid in pids]
        sample[f"{name} memory"] = max((memory for memory, _ in held), default=0)
        sample[f"{name} descriptors"] = max((descriptors for _, descriptors in held), default=0)
    _samples.append(sample)
    Path(path).write_text(json.dumps(_samples))


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _held(pid: int) -> tuple[int, int]:
    """Return the resident bytes and the open descriptors of a process; 0 if it is just ending."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir(f"/proc/{pid}/fd"))
    except (OSError, IndexError):
        return 0, 0
