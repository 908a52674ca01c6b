"""A pytest plugin that records when a rank is in time.sleep() during a test, to distinguish sleep from work."""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

#: The variable with the name of the file that ranks write to.
WRITES = "BENCHMARK_SLEEPS"


@pytest.fixture(autouse=True)
def sleeping(request: pytest.FixtureRequest) -> Iterator[None]:
    """Record every sleep of this process, on all threads."""
    spans: list[tuple[float, float]] = []
    sleep = time.sleep

    def recorded(seconds: Any, /) -> None:
        began = time.monotonic()
        try:
            sleep(seconds)
        finally:
            spans.append((began, time.monotonic()))

    time.sleep = recorded
    try:
        yield
    finally:
        time.sleep = sleep
        if spans:
            with open(os.environ[WRITES], "a") as file:
                file.write(json.dumps([request.node.nodeid, spans]) + "\n")


def slept(path: Path) -> float:
    """Return the seconds during which some rank of a test slept, summed over all tests."""
    spans: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for line in path.read_text().splitlines() if path.exists() else ():
        nodeid, slept_spans = json.loads(line)
        spans[nodeid] += [(began, ended) for began, ended in slept_spans]
    return sum(map(_covered, spans.values()))


def _covered(spans: list[tuple[float, float]]) -> float:
    total, until = 0.0, float("-inf")
    for began, ended in sorted(spans):
        total += max(0.0, ended - max(began, until))
        until = max(until, ended)
    return total
