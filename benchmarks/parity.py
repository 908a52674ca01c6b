"""Measures parity of a transformer of two layers on four ranks: one more call, and what watching costs."""

from __future__ import annotations

import json
import statistics
import tempfile
from pathlib import Path

from benchmarks.measure import Cost, Row, at_most, median, median_ratio, pytest

FEW, MANY = 1, 4
SECONDS = 3.0
WORK = "parity of a transformer of 2 layers, FSDP2 on 4 ranks, 3 steps"


def rows() -> list[Row]:
    calls = [_one_more() for _ in range(3)]
    one_more = statistics.median(cost.seconds for cost in calls)
    processor = statistics.median(cost.processor for cost in calls)
    rounds = _watched()
    return [
        Row(
            f"{WORK}, fp64 and fp32, one more call in a warm world",
            f"under {SECONDS:g} s",
            f"{one_more:.2f} s ({processor:.1f} s of processor time)",
            one_more < SECONDS,
        ),
        at_most(
            f"{WORK}, with each tensor watched and compared in fp64, against the steps alone",
            4,
            median_ratio(rounds, 1, 0),
            f"{median(rounds, 1) * 1e3:.0f} ms against {median(rounds, 0) * 1e3:.0f} ms",
        ),
    ]


def _one_more() -> Cost:
    few = pytest("parity", FEW, only=["test_parity"])
    many = pytest("parity", MANY, only=["test_parity"], BENCHMARK_SETTLED=str(FEW))
    return Cost(many.later, many.processor - few.processor) / (MANY - FEW)


def _watched() -> list[tuple[Cost, ...]]:
    with tempfile.TemporaryDirectory() as folder:
        figures = Path(folder, "figures.json")
        pytest("parity", 1, only=["test_watched_steps"], BENCHMARK_FIGURES=str(figures))
        pairs = json.loads(figures.read_text())
    return [tuple(Cost(*cost) for cost in pair) for pair in pairs]
