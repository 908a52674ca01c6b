"""Measures parity of a transformer of two layers on four ranks: one more call, and what watching costs."""

from __future__ import annotations

import json
import statistics
import tempfile
from pathlib import Path

from benchmarks.measure import Cost, Row, at_most, median, median_ratio, pytest

FEW, MANY = 1, 4
#: Of all ranks' processors: 3 s of the clock on two idle cores. Time of the clock says little on a busy machine.
PROCESSOR = 5.0
WAYS = {"fsdp": "FSDP2", "ddp": "DDP", "torch-tensor": "DTensor tensor parallel"}


def rows() -> list[Row]:
    rounds = _watched()
    return [
        *(_called(way) for way in WAYS),
        at_most(
            f"{_work('fsdp')}, with each tensor watched and compared in fp64, against the steps alone",
            4,
            median_ratio(rounds, 1, 0),
            f"{median(rounds, 1) * 1e3:.0f} ms against {median(rounds, 0) * 1e3:.0f} ms",
        ),
    ]


def _work(way: str) -> str:
    return f"parity of a transformer of 2 layers, {WAYS[way]} on 4 ranks, 3 steps"


def _called(way: str) -> Row:
    calls = [_one_more(way) for _ in range(3)]
    seconds = statistics.median(cost.seconds for cost in calls)
    processor = statistics.median(cost.processor for cost in calls)
    return Row(
        f"{_work(way)}, fp64 and fp32, one more call in a warm world",
        f"under {PROCESSOR:g} s of processor time",
        f"{processor:.1f} s ({seconds:.2f} s on the clock)",
        processor < PROCESSOR,
    )


def _one_more(way: str) -> Cost:
    few = pytest("parity", FEW, only=["test_parity"], BENCHMARK_WAY=way)
    many = pytest("parity", MANY, only=["test_parity"], BENCHMARK_WAY=way, BENCHMARK_SETTLED=str(FEW))
    return Cost(many.later, many.processor - few.processor) / (MANY - FEW)


def _watched() -> list[tuple[Cost, ...]]:
    with tempfile.TemporaryDirectory() as folder:
        figures = Path(folder, "figures.json")
        pytest("parity", 1, only=["test_watched_steps"], BENCHMARK_FIGURES=str(figures))
        pairs = json.loads(figures.read_text())
    return [tuple(Cost(*cost) for cost in pair) for pair in pairs]
