"""Compare what whole runs cost with an earlier commit: ``python -m benchmarks.whole COMMIT ["a command" ...]``.

Both commits are cloned and installed in a temporary folder. Each command runs in both, one after the other, and must
end well in both. It is a line for the shell, in the folder of the clone, with its virtual environment first in PATH.
Without one, these are what a person waits for: the collection, `make quick`, the default profile, the kill matrix and
the tests. The machine should do nothing else meanwhile. The times are those of all processes of a run.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cases import orphans
from benchmarks.measure import HERE, environment_of_runs

REPOSITORY = HERE.parent

#: What a person waits for.
COMMANDS = (
    "pytest -q --collect-only suites/",
    "make quick",
    "pytest -q -n auto suites/",
    "everyrank kill-matrix -n auto",
    "pytest -q -n auto tests/",
)


@dataclass(frozen=True)
class Used:
    """What one command took, in seconds: of the clock, and of the processors."""

    wall: float
    user: float
    system: float

    @property
    def processor(self) -> float:
        return self.user + self.system

    def __str__(self) -> str:
        share = self.system / self.processor if self.processor else 0.0
        return f"{self.user:.0f} + {self.system:.0f} = {self.processor:.0f} s ({share:.0%} system), {self.wall:.0f} s"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.whole", description=__doc__)
    parser.add_argument("commit", help="the earlier commit")
    parser.add_argument("commands", nargs="*", metavar="command")
    options = parser.parse_args()
    orphans.adopt()
    with tempfile.TemporaryDirectory(prefix="whole-runs-") as folder:
        then, now = _installed(Path(folder), "then", options.commit), _installed(Path(folder), "now", "HEAD")
        print("| command | then: user + system, clock | now | processor time | clock |\n|---|---|---|---|---|")
        for command in options.commands or COMMANDS:
            before, after = used(command, then), used(command, now)
            ratios = f"{after.processor / before.processor:.2f} times | {after.wall / before.wall:.2f} times"
            print(f"| `{command}` | {before} | {after} | {ratios} |", flush=True)


def _installed(folder: Path, name: str, commit: str) -> Path:
    clone = folder / name
    subprocess.run(["git", "clone", "--quiet", REPOSITORY, clone], check=True)
    subprocess.run(["git", "checkout", "--quiet", commit], cwd=clone, check=True)
    subprocess.run(["make", "install"], cwd=clone, check=True, stdout=sys.stderr)
    return clone


def used(command: str, folder: Path) -> Used:
    """Run a command to its end. Return what it and all processes that it started have used."""
    environment = environment_of_runs()
    environment["PATH"] = f"{folder / '.venv/bin'}{os.pathsep}{environment['PATH']}"
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        command, shell=True, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    wall = time.monotonic() - began
    if done.returncode:
        sys.exit(f"{command} ended with exit status {done.returncode}:\n{done.stdout[-3000:]}")
    orphans.wait()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Used(wall, after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime)


if __name__ == "__main__":
    main()
