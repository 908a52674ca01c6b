"""The common parts of the benchmarks: a timed run of pytest, the floor, and a row of the table."""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
CASES = HERE / "cases"

#: The plugins that are installed with everyrank, and the options that disable them.
PLUGINS = ("everyrank", "everyrank-fixtures", "everyrank-suites", "everyrank-reports")
WITHOUT = tuple(argument for plugin in PLUGINS for argument in ("-p", f"no:{plugin}"))

#: The time limit of a run, in seconds; a run takes a few seconds unless it is stuck.
LIMIT = 600


class Cost(NamedTuple):
    """What some work took, in seconds: of the clock, and of the processors, in all its processes.

    The latter is NaN where not all of them can be seen.
    """

    seconds: float
    processor: float

    def __truediv__(self, tests: float) -> Cost:
        return Cost(self.seconds / tests, self.processor / tests)

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.seconds - other.seconds, self.processor - other.processor)


@dataclass(frozen=True)
class Times:
    """The times that the stopwatch in ``cases/conftest.py`` measured, in seconds."""

    start: float  # from the interpreter's start to collection
    collection: float
    loop: float  # from the first test to the end of the last, with all starts and ends around them
    processor: float  # of all processes, in the loop
    later: float = math.nan  # from the end of test number ``BENCHMARK_SETTLED`` to the end of the last one

    @property
    def cost(self) -> Cost:
        """What the loop took."""
        return Cost(self.loop, self.processor)


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    work: str
    target: str
    measured: str
    met: bool | None  # None: there is no target
    ratio: Cost | None = None
    """How many times as much as the other side ours takes, if the row compares two sides of one run."""


def pytest(
    case: str,
    tests: int,
    *options: str,
    only: Iterable[str] = (),
    limit: float = LIMIT,
    command: Sequence[str] | None = None,
    **environment: str,
) -> Times:
    """Run one file of ``cases/``, or only some of its tests. This many must pass, and none may fail."""
    file = CASES / f"{case}.py"
    paths = [f"{file}::{test}" for test in only] or [str(file)]
    with tempfile.TemporaryDirectory() as folder:
        stopwatch = Path(folder, "stopwatch.json")
        more = {"BENCHMARK_TESTS": str(tests), "BENCHMARK_STOPWATCH": str(stopwatch), **environment}
        more["EVERYRANK_LEASES"] = folder  # the run takes leases, but does not wait for other runs
        more["BENCHMARK_BEGAN"] = str(time.time())
        done = subprocess.run(
            [*(command or (sys.executable, "-m", "pytest")), "-q", "-c", CASES / "pytest.ini", *options, *paths],
            env={**environment_of_runs(), **more},
            capture_output=True,
            text=True,
            timeout=limit,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{case} failed:\n{done.stdout}{done.stderr}")
        times = json.loads(stopwatch.read_text())
    if times.pop("passed") != tests:
        raise RuntimeError(f"{case}: not every test passed:\n{done.stdout}")
    return Times(**times)


def environment_of_runs() -> dict[str, str]:
    """Return this process's environment without the variable that forbids compiled files.

    pip compiles what it installs. Python compiles an editable tree, too, if it may write the compiled files.
    """
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def floor(body: str, size: int, worlds: int) -> Cost:
    """Return the cost of one world of plain forks or, for ``again`` and ``again-batch``, of one round in it."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.floor", body, str(size), str(worlds)],
        cwd=HERE.parent,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=True,
    )
    return Cost(*map(float, done.stdout.split()))


def paired(rounds: int, *measures: Callable[[], Cost]) -> list[tuple[Cost, ...]]:
    """Measure in turns (A B A B), so that the load of the host affects all of them equally."""
    return [tuple(measure() for measure in measures) for _ in range(rounds)]


def median_ratio(rounds: Sequence[tuple[Cost, ...]], above: int, below: int) -> Cost:
    """Return the medians of the ratios within each round, of the clock and of the processors."""
    return Cost(*(statistics.median(costs[above][kind] / costs[below][kind] for costs in rounds) for kind in (0, 1)))


def median(rounds: Sequence[tuple[Cost, ...]], column: int) -> float:
    """Return the median of the seconds of the clock."""
    return statistics.median(costs[column].seconds for costs in rounds)


def at_most(work: str, limit: float, ratio: Cost, figures: str) -> Row:
    measured = f"{ratio.seconds:.2f} times ({figures})"
    return Row(work, f"at most {limit:g} times", measured, ratio.seconds <= limit, ratio)


def faster(work: str, limit: float, ratio: Cost, figures: str) -> Row:
    """Return the row for a ratio of ours to theirs."""
    target = f"at least {limit:g} times faster" if limit > 1 else "faster"
    times = 1 / ratio.seconds
    return Row(work, target, f"{times:.1f} times faster ({figures})", times >= limit, ratio)


def under(work: str, limit: float, cost: Cost) -> Row:
    """Return the row for a time on the clock that has a target."""
    measured = f"{cost.seconds:.1f} s, of which the processors take {cost.processor:.1f} s"
    return Row(work, f"under {limit:g} s", measured, cost.seconds < limit)


def table(rows: list[Row]) -> Iterator[str]:
    """Yield the lines of a Markdown table, aligned as plain text."""
    marks = {True: "yes", False: "NO", None: ""}
    cells = [("what", "target", "measured", "met", "processor time")]
    cells += [(row.work, row.target, row.measured, marks[row.met], _processor_time(row.ratio)) for row in rows]
    widths = [max(len(cell[column]) for cell in cells) for column in range(len(cells[0]))]
    for number, cell in enumerate(cells):
        yield "| " + " | ".join(text.ljust(width) for text, width in zip(cell, widths, strict=True)) + " |"
        if number == 0:
            yield "|" + "|".join("-" * (width + 2) for width in widths) + "|"


def _processor_time(ratio: Cost | None) -> str:
    if ratio is None or math.isnan(ratio.processor):
        return ""
    return f"{ratio.processor:.2f} times" if ratio.processor > 0.5 else f"{1 / ratio.processor:.1f} times less"
