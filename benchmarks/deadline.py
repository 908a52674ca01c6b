"""Measures how long after its deadline a world is gone, whatever its ranks do."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from everyrank import proc_stat

from benchmarks.measure import CASES, LIMIT, Row

DEADLINE = 1.0


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        taken = _watch(Path(folder))
    figures = ", ".join(f"{way} {seconds:.1f} s" for way, seconds in sorted(taken.items(), key=lambda pair: -pair[1]))
    worst = max(taken.values())
    return [
        Row("4 stuck ranks, all gone after their deadline", "at most 2 s", f"{worst:.1f} s ({figures})", worst <= 2)
    ]


def _watch(folder: Path) -> dict[str, float]:
    """Return the seconds from each world's deadline until its last process was gone."""
    environment = {
        **os.environ,
        "BENCHMARK_STUCK": str(folder),
        "BENCHMARK_BEGAN": "0",
        "EVERYRANK_LEASES": str(folder),
    }
    environment["BENCHMARK_STOPWATCH"] = os.devnull
    command: list[str | Path] = [sys.executable, "-m", "pytest", "-q", "-c", CASES / "pytest.ini", CASES / "stuck.py"]
    with open(folder / "out", "w") as out:
        run = subprocess.Popen(command, env=environment, stdout=out, stderr=subprocess.STDOUT)
        began: dict[str, float] = {}
        ranks: dict[str, set[int]] = {}
        gone: dict[str, float] = {}
        until = time.monotonic() + LIMIT
        while run.poll() is None and time.monotonic() < until:
            for file in folder.glob("*-?"):
                fields = file.read_text().split()
                if len(fields) == 2:
                    way = file.name.rpartition("-")[0]
                    ranks.setdefault(way, set()).add(int(fields[0]))
                    began[way] = min(began.get(way, float("inf")), float(fields[1]))
            for way, pids in ranks.items():
                if way not in gone and len(pids) == 4 and not any(map(_lives, pids)):
                    gone[way] = time.time()
            time.sleep(0.01)
        run.kill()
    if len(gone) < 2:
        raise RuntimeError(f"the stuck worlds were not seen to end:\n{(folder / 'out').read_text()}")
    return {way: ended - began[way] - DEADLINE for way, ended in gone.items()}


def _lives(pid: int) -> bool:
    stat = proc_stat.find(pid)
    return stat is not None and not stat.has_ended


if __name__ == "__main__":
    print(rows())
