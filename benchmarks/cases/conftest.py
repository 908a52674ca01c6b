"""A stopwatch around collection and the run loop, outside of everything that a plugin does there."""

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
