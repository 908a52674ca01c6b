"""Many worlds in a row, warm and new ones, of which some end badly: each verdict must be true, and nothing grow.

python -m benchmarks.worlds --worlds 10000
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from everyrank.reports.runfile.model import CaseLine
from everyrank.reports.runfile.read import read

from benchmarks.measure import CASES, HERE, environment_of_runs

#: In this many tests in a row, each end but passing comes once in a warm world and once in new processes.
PERIOD = 200
#: The ends: the outcome, and a text that the message must have.
TRUTHS: dict[str, tuple[str, str]] = {
    "assertion": ("fail", "planted {number}"),
    "exit 0": ("crash", "rank {rank} of {size} left without a record (exit code 0)"),
    "SIGKILL": ("crash", "rank {rank} of {size} was killed by SIGKILL"),
    "SIGSEGV": ("crash", "rank {rank} of {size} was killed by SIGSEGV"),
    "some skip": ("fail", "ranks disagree"),
    "all skip": ("skipped", "planted {number}"),
    "xfail": ("known", "planted"),
    "deadlock": ("timeout", "rank {rank} ended its test without reaching this all_reduce"),
    "pass": ("pass", ""),
}


@dataclass(frozen=True)
class Planted:
    """How the test with this number ends, by itself."""

    number: int

    @property
    def kind(self) -> str:
        return list(TRUTHS)[min(self.number % PERIOD // 2, len(TRUTHS) - 1)]

    @property
    def fresh(self) -> bool:
        return bool(self.number % 2)

    @property
    def size(self) -> int:
        return 2 + self.number // 2 % 2

    @property
    def rank(self) -> int:
        return self.number % self.size

    def wrong(self, case: CaseLine) -> str:
        """Return what is wrong with the verdict; empty if it is true."""
        outcome, text = TRUTHS[self.kind]
        message = text.format(number=self.number, rank=self.rank, size=self.size)
        if case.outcome == outcome and message in case.message:
            return ""
        return f"{case.id} ({self.kind}): {case.outcome}, {case.message!r}; true is {outcome}, {message!r}"


def planted(case: CaseLine) -> Planted:
    return Planted(int(case.id.rpartition("[")[2].rstrip("]")))


def run(worlds: int, folder: Path) -> tuple[list[CaseLine], list[dict[str, float]]]:
    """Run the worlds; return their lines of the run file, and samples of memory and descriptors."""
    file, samples = folder / "run.jsonl", folder / "samples.json"
    environment = {
        "BENCHMARK_TESTS": str(worlds), "BENCHMARK_SAMPLES": str(samples),
        "BENCHMARK_EVERY": str(max(1, worlds // 100)), "BENCHMARK_BEGAN": "0",
        "BENCHMARK_STOPWATCH": str(folder / "stopwatch.json"),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--tb=no", "-p", "no:randomly", "-p", "no:cacheprovider", "-c",
         CASES / "pytest.ini", "--run-file", file, CASES / "worlds.py"],
        cwd=HERE.parent, env={**environment_of_runs(), **environment}, stdout=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    if done.returncode != 1:
        raise RuntimeError(f"pytest ended with status {done.returncode}, where 1 is true: some tests fail")
    return list(read(file).cases), json.loads(samples.read_text())


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.worlds", description=__doc__)
    parser.add_argument("--worlds", type=int, default=10_000)
    worlds = parser.parse_args(arguments).worlds
    with tempfile.TemporaryDirectory() as folder:
        cases, samples = run(worlds, Path(folder))
    wrong = [text for case in cases if (text := planted(case).wrong(case))]
    print(*wrong, sep="\n")
    counts = dict(Counter(case.outcome for case in cases))
    print(f"{len(cases)} of {worlds} worlds, {len(wrong)} wrong verdicts: {counts}")
    early, late = samples[len(samples) // 10], samples[-1]
    for name in sorted(early):
        if name.endswith(("memory", "descriptors")):
            print(f"{name}: {early[name]:,.0f} after {early['tests']:.0f} worlds, {late[name]:,.0f} at the end")
    return 1 if wrong or len(cases) != worlds else 0


if __name__ == "__main__":
    sys.exit(main())
