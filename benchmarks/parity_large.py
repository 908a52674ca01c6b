"""Measures parity of a transformer of 105 million parameters on two ranks: seconds, and the memory of both ranks."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measure import Row, pytest

SECONDS, GIB = 120.0, 8.0
WAYS = ("ddp", "fsdp")
LIMIT = 3600.0


def rows() -> list[Row]:
    return [row for way in WAYS for row in _rows(way)]


def _rows(way: str) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        pytest("parity_large", 1, only=[f"test_a_large_model[{way}]"], limit=LIMIT, BENCHMARK_MEMORY=folder)
        figures = json.loads(Path(folder, f"{way}.json").read_text())
    plain, mine = figures["plain"], figures["parity"]
    own, files = mine["Pss_Anon"] / (1 << 20), mine["Pss_File"] / (1 << 20)
    theirs = plain["Pss_Anon"] / (1 << 20)
    work = f"parity of {figures['parameters'] / 1e6:.0f} million parameters, {way} on 2 ranks, 3 steps, fp64 and fp32"
    seconds, processor = mine["seconds"], mine["processor"]
    yield Row(
        work,
        f"under {SECONDS:g} s",
        f"{seconds:.0f} s ({processor:.0f} s of rank 0's processor, {processor / plain['processor']:.1f} times what "
        "the ranks' own steps take)",
        seconds < SECONDS,
    )
    yield Row(
        f"{work}, memory of both ranks at their most",
        f"under {GIB:g} GiB",
        f"{own:.1f} GiB, where the ranks' own steps have {theirs:.1f} GiB; and {files:.1f} GiB mapped of the file of "
        "the plain model's values",
        own < GIB,
    )
