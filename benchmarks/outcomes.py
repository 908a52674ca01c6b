"""What tests come to under torch's own harness, and under ``--adopt``: test by test, into docs/adopt-outcomes.tsv.

    python -m benchmarks.outcomes ours      # all of them: minutes
    python -m benchmarks.outcomes theirs    # an hour on two idle cores; goes on where it was broken off
    python -m benchmarks.outcomes table

What a run has found so far is kept in build/outcomes/; ``--anew`` begins anew.
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

#: Names the file that the plugin below writes to.
_WRITES = "BENCHMARK_OUTCOMES"

#: Why ours differs from theirs. A difference that is not here has no explanation yet, and the table says so.
STRICTER = {
    "Spawned::test_dies_on_one_rank": "rank 1 died; torch looks at rank 0 only",
    "Spawned::test_exits_on_one_rank": "rank 1 left by sys.exit(0) alone; torch looks at rank 0 only",
    "Spawned::test_skips_on_one_rank": "only rank 0 skipped; torch looks at rank 0 only",
    "NeverStarts::test_nothing_runs": "setUp started no process: nothing ran, which torch takes for well",
    "Continuous::test_4_after_a_failure": "torch skips the rest of a class after a failure; here it gets a new world",
}


@dataclass(frozen=True)
class Outcome:
    """What one test came to on one side."""

    test: str
    outcome: str
    seconds: float
    text: str


# --- in the run: a plugin -----------------------------------------------------------------------------


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what is known already."""
    known = {one.test for one in read(Path(os.environ[_WRITES]))}
    items[:] = [item for item in items if _name(item.nodeid) not in known]


_phases: dict[str, list[Any]] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """When a test is through, write a line."""
    seen = _phases.setdefault(report.nodeid, [])
    seen.append(report)
    if report.when == "teardown":
        del _phases[report.nodeid]
        bad = [one for one in seen if one.outcome != "passed"]
        outcome = "xfailed" if any(hasattr(one, "wasxfail") for one in bad) else bad[0].outcome if bad else "passed"
        text = str(bad[0].longrepr)[-2000:] if bad else ""
        line = [_name(report.nodeid), outcome, round(sum(one.duration for one in seen), 2), text]
        with open(os.environ[_WRITES], "a") as file:
            file.write(json.dumps(line) + "\n")


def _name(nodeid: str) -> str:
    return nodeid.partition("::")[2]


# --- outside ------------------------------------------------------------------------------------------


def read(path: Path) -> Iterator[Outcome]:
    """What a run has written so far."""
    if path.exists():
        for line in path.read_text().splitlines():
            yield Outcome(*json.loads(line))


def run(side: str, anew: bool) -> None:
    """Run what is not known yet of all files, one pytest a file."""
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
    """Both sides beside each other, written to docs/; returns the sum in words."""
    theirs, ours = ({one.test: one for one in read(KEPT / f"{side}.jsonl")} for side in SIDES)
    equal = differ = missing = 0
    with open(TABLE, "w", newline="") as file:
        rows = csv.writer(file, delimiter="\t", lineterminator="\n")
        rows.writerow(["test", "torch's harness", "--adopt", "why they differ"])
        for test in sorted(ours):
            one, other = theirs.get(test), ours[test]
            why = ""
            if one is None:
                missing += 1
            elif one.outcome == other.outcome:
                equal += 1
            else:
                differ += 1
                why = STRICTER.get(test, "not explained")
            rows.writerow([test, one.outcome if one else "not run", other.outcome, why])
    return f"{len(ours)} tests: {equal} alike, {differ} stricter, {missing} not run under torch's harness"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.outcomes", description=__doc__)
    parser.add_argument("what", choices=[*SIDES, "table"])
    parser.add_argument("--anew", action="store_true", help="forget what earlier runs have found")
    options = parser.parse_args()
    if options.what != "table":
        run(options.what, options.anew)
    print(table())
    return 0


if __name__ == "__main__":
    sys.exit(main())
