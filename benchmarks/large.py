"""128 ranks started, an all_reduce, and their end; and the memory of such a rank."""

from __future__ import annotations

import json
import statistics
import tempfile
from pathlib import Path

from benchmarks.measure import Row, at_most, floor, median, median_ratio, paired, pytest

SIZE, TESTS = 128, 2
WORK = f"{SIZE} ranks, gloo, all_reduce, fresh processes"


def rows() -> list[Row]:
    size = str(SIZE)
    rounds = paired(
        3,
        lambda: pytest("group", TESTS, "--fresh-worlds", BENCHMARK_SIZE=size).cost / TESTS,
        lambda: floor("group", SIZE, TESTS),
    )
    with tempfile.TemporaryDirectory() as folder:
        pytest("memory", 1, BENCHMARK_SIZE=size, BENCHMARK_MEMORY=folder)
        held = [json.loads(file.read_text()) / 1024 for file in Path(folder).iterdir()]
    return [
        at_most(
            f"{WORK}, against plain os.fork",
            1.3,
            median_ratio(rounds, 0, 1),
            f"{median(rounds, 0):.2f} s against {median(rounds, 1):.2f} s",
        ),
        Row(
            f"{SIZE} ranks, memory of one (proportional set size)",
            "",
            f"{statistics.median(held):.1f} MiB, the largest {max(held):.1f} MiB",
            None,
        ),
    ]
