"""What the benchmarks have in common: a run of pytest with a stopwatch in it, the floor, and a row of the table."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
CASES = HERE / "cases"

#: Keeps all that is installed with everyrank out of a run.
PLUGINS = ("everyrank", "everyrank-fixtures", "everyrank-suites", "everyrank-reports")
WITHOUT = tuple(word for plugin in PLUGINS for word in ("-p", f"no:{plugin}"))

#: One run of anything here takes seconds; a stuck one must end.
LIMIT = 120


@dataclass(frozen=True)
class Times:
    """What the stopwatch in ``cases/conftest.py`` saw, in seconds."""

    start: float  # from the interpreter's start to collection
    collection: float
    loop: float  # from the first test to the end of the last, with whatever is started and ended around them


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    work: str
    target: str
    measured: str
    met: bool | None  # None: written down, without a target


def pytest(
    case: str, tests: int, *options: str, only: Iterable[str] = (), limit: float = LIMIT, **environment: str
) -> Times:
    """Run one file of ``cases/``, or only some of its tests. This many must pass, and none may fail."""
    file = CASES / f"{case}.py"
    chosen = [f"{file}::{one}" for one in only] or [file]
    with tempfile.TemporaryDirectory() as folder:
        stopwatch = Path(folder, "stopwatch.json")
        more = {"BENCHMARK_TESTS": str(tests), "BENCHMARK_STOPWATCH": str(stopwatch), **environment}
        more["EVERYRANK_LEASES"] = folder  # leases are taken, but nobody else's test is waited for
        more["BENCHMARK_BEGAN"] = str(time.time())
        # What pip installs is compiled; an editable tree is too, where Python may keep what it has compiled.
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-c", CASES / "pytest.ini", *options, *chosen],
            env={**inherited, **more},
            capture_output=True,
            text=True,
            timeout=limit,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{case} failed:\n{done.stdout}{done.stderr}")
        told = json.loads(stopwatch.read_text())
    if told.pop("passed") != tests:
        raise RuntimeError(f"{case}: not every test passed:\n{done.stdout}")
    return Times(**told)


def floor(body: str, size: int, worlds: int) -> float:
    """Seconds for one world of plain forks; of ``again``, for one round in it."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.floor", body, str(size), str(worlds)],
        cwd=HERE.parent,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=True,
    )
    return float(done.stdout)


def paired(rounds: int, *measures: Callable[[], float]) -> list[tuple[float, ...]]:
    """A B A B: what the machine does besides falls on all of them alike."""
    return [tuple(measure() for measure in measures) for _ in range(rounds)]


def median_ratio(rounds: list[tuple[float, ...]], above: int, below: int) -> float:
    """The median of the ratios within each round."""
    return statistics.median(one[above] / one[below] for one in rounds)


def median(rounds: list[tuple[float, ...]], column: int) -> float:
    return statistics.median(one[column] for one in rounds)


def at_most(work: str, limit: float, ratio: float, told: str) -> Row:
    return Row(work, f"at most {limit:g} times", f"{ratio:.2f} times ({told})", ratio <= limit)


def faster(work: str, limit: float, ratio: float, told: str) -> Row:
    wanted = f"at least {limit:g} times faster" if limit > 1 else "faster"
    return Row(work, wanted, f"{ratio:.1f} times faster ({told})", ratio >= limit)


def table(rows: list[Row]) -> Iterator[str]:
    """Markdown, readable as it is."""
    words = {True: "yes", False: "NO", None: ""}
    cells = [("what", "target", "measured", "met")]
    cells += [(row.work, row.target, row.measured, words[row.met]) for row in rows]
    widths = [max(len(cell[column]) for cell in cells) for column in range(4)]
    for number, cell in enumerate(cells):
        yield "| " + " | ".join(text.ljust(width) for text, width in zip(cell, widths, strict=True)) + " |"
        if number == 0:
            yield "|" + "|".join("-" * (width + 2) for width in widths) + "|"
