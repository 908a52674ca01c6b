"""Compares the outcomes of tests under torch's own harness and under ``--adopt``, in docs/adopt-outcomes.tsv.

    python -m benchmarks.outcomes ours      # all tests, in minutes
    python -m benchmarks.outcomes theirs    # an hour on two idle cores; continues a run that was interrupted
    python -m benchmarks.outcomes table

The outcomes found so far are stored in build/outcomes/; ``--anew`` starts again.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.measure import CASES, HERE, WITHOUT

FILES = (HERE.parent / "tests" / "samples" / "torch_style.py", CASES / "torch_rpc_faulty.py", CASES / "torch_rpc.py")
KEPT = HERE.parent / "build" / "outcomes"
TABLE = HERE.parent / "docs" / "adopt-outcomes.tsv"
SIDES = {"theirs": WITHOUT, "ours": ("--adopt", "--leaks=off")}

#: The variable with the name of the file that the plugin below writes to.
_WRITES = "BENCHMARK_OUTCOMES"

#: Why the outcome under --adopt differs. The table marks a difference that is not listed here as not explained.
STRICTER = {
    "Spawned::test_dies_on_one_rank": "rank 1 died; torch checks only rank 0",
    "Spawned::test_exits_on_one_rank": "rank 1 left by sys.exit(0) alone; torch checks only rank 0",
    "Spawned::test_skips_on_one_rank": "only rank 0 skipped; torch checks only rank 0",
    "NeverStarts::test_nothing_runs": "setUp started no process, so nothing ran; torch accepts that",
    "Continuous::test_4_after_a_failure": "torch skips the rest of a class after a failure; here it gets a new world",
}


@dataclass(frozen=True)
class Outcome:
    """The outcome of one test under one harness."""

    test: str
    outcome: str
    seconds: float
    text: str


# --- in the run: a plugin -----------------------------------------------------------------------------


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out the tests whose outcome is known already."""
    known = {outcome.test for outcome in read(Path(os.environ[_WRITES]))}
    items[:] = [item for item in items if _name(item.nodeid) not in known]


_phases: dict[str, list[Any]] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write a line when a test has ended."""
    reports = _phases.setdefault(report.nodeid, [])
    reports.append(report)
    if report.when == "teardown":
        del _phases[report.nodeid]
        bad = [phase for phase in reports if phase.outcome != "passed"]
        xfailed = any(hasattr(phase, "wasxfail") for phase in bad)
        outcome = "xfailed" if xfailed else bad[0].outcome if bad else "passed"
        text = str(bad[0].longrepr)[-2000:] if bad else ""
        line = [_name(report.nodeid), outcome, round(sum(phase.duration for phase in reports), 2), text]
        with open(os.environ[_WRITES], "a") as file:
            file.write(json.dumps(line) + "\n")


def _name(nodeid: str) -> str:
    return nodeid.partition("::")[2]


# --- outside ------------------------------------------------------------------------------------------


def read(path: Path) -> Iterator[Outcome]:
    """Yield the outcomes that a run has written so far."""
    if path.exists():
        for line in path.read_text().splitlines():
            yield Outcome(*json.loads(line))


def run(side: str, anew: bool) -> None:
    """Run the tests of all files whose outcome is not known yet, with one pytest for each file."""
    KEPT.mkdir(parents=True, exist_ok=True)
    writes = KEPT / f"{side}.jsonl"
    if anew:
        writes.unlink(missing_ok=True)
    for file in FILES:
        plugins = ("-p", "benchmarks.outcomes", "-p", "no:timeout", "-p", "no:cacheprovider", "--noconftest")
        subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "--tb=no",
                "-c",
                CASES / "pytest.ini",
                *plugins,
                *SIDES[side],
                file,
            ],
            cwd=HERE.parent,
            env={**os.environ, _WRITES: str(writes)},
            check=False,  # some tests of the sample fail on purpose
        )


def table() -> str:
    """Write both sides' outcomes to docs/; return the totals as a text."""
    theirs, ours = ({outcome.test: outcome for outcome in read(KEPT / f"{side}.jsonl")} for side in SIDES)
    equal = differ = missing = 0
    with open(TABLE, "w", newline="") as file:
        rows = csv.writer(file, delimiter="\t", lineterminator="\n")
        rows.writerow(["test", "torch's harness", "--adopt", "why they differ"])
        for test in sorted(ours):
            torchs, adopted = theirs.get(test), ours[test]
            reason = ""
            if torchs is None:
                missing += 1
            elif torchs.outcome == adopted.outcome:
                equal += 1
            else:
                differ += 1
                reason = STRICTER.get(test, "not explained")
            rows.writerow([test, torchs.outcome if torchs else "not run", adopted.outcome, reason])
    return f"{len(ours)} tests: {equal} alike, {differ} stricter, {missing} not run under torch's harness"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.outcomes", description=__doc__)
    parser.add_argument("step", choices=[*SIDES, "table"])
    parser.add_argument("--anew", action="store_true", help="forget the outcomes of earlier runs")
    options = parser.parse_args()
    if options.step != "table":
        run(options.step, options.anew)
    print(table())
    return 0


if __name__ == "__main__":
    sys.exit(main())
