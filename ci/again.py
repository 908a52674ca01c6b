"""Run the same tests again and again: an outcome that changes from one run to the next is a finding.

    python ci/again.py TIMES FOLDER [pytest's arguments ...]

Keeps each run's file and output in FOLDER. Exits with 1 if a run was not green or an outcome changed.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from everyrank.reports.runfile.read import read


def main(times: int, folder: Path, arguments: list[str]) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    first: dict[str, str] = {}
    bad = 0
    for number in range(1, times + 1):
        began = time.monotonic()
        code, ended = _once(folder / f"{number:02}", arguments)
        seconds = time.monotonic() - began
        first = first or ended
        changed = [case for case in first.keys() | ended.keys() if first.get(case) != ended.get(case)]
        counts = ", ".join(f"{count} {outcome}" for outcome, count in Counter(ended.values()).most_common())
        print(f"run {number} of {times}: exit {code}, {seconds:.0f} s, {len(changed)} changed: {counts}", flush=True)
        for case in sorted(changed):
            print(f"  {case}: {first.get(case)} in run 1, {ended.get(case)} now", flush=True)
        bad += bool(code or changed)
    return 1 if bad else 0


def _once(stem: Path, arguments: list[str]) -> tuple[int, dict[str, str]]:
    """Run once; return the exit code and the outcome of each multi-rank test."""
    run = stem.with_suffix(".jsonl")
    with stem.with_suffix(".txt").open("w") as printed:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", f"--run-file={run}", *arguments],
            stdout=printed,
            stderr=subprocess.STDOUT,
            check=False,
        )
    return done.returncode, {case.id: case.outcome for case in read(run).cases}


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]))
