"""Measures `everyrank parity` on a small script under DDP, and the script alone by torchrun at the same sizes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence

from benchmarks.measure import HERE, LIMIT, Cost, Row, environment_of_runs, median, median_ratio, paired

SCRIPT = HERE.parent / "tests/parity/script/scripts/train.py"
COMMAND = "import sys; from everyrank.cli import main; sys.exit(main(sys.argv[1:]))"
SECONDS = 20.0


def rows() -> list[Row]:
    rounds = paired(3, _command, _torchrun)
    ratio = median_ratio(rounds, 0, 1)
    ours, theirs = median(rounds, 0), median(rounds, 1)
    return [
        Row(
            "`everyrank parity --ranks 1,2` of a small DDP script, against torchrun on one rank and then on two",
            f"under {SECONDS:g} s",
            f"{ours:.1f} s, {ratio.seconds:.2f} times ({theirs:.1f} s)",
            ours < SECONDS,
            ratio,
        )
    ]


def _command() -> Cost:
    return _timed([[sys.executable, "-c", COMMAND, "parity", "--ranks", "1,2", str(SCRIPT)]])


def _torchrun() -> Cost:
    run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node"]
    return _timed([[*run, str(size), str(SCRIPT)] for size in (1, 2)])


def _timed(commands: Sequence[Sequence[str]]) -> Cost:
    """Run the commands one after the other."""
    begin, before = time.perf_counter(), os.times()
    for command in commands:
        subprocess.run(
            command, env=environment_of_runs(), cwd=HERE.parent, capture_output=True, timeout=LIMIT, check=True
        )
    after = os.times()
    processor = after.children_user + after.children_system - before.children_user - before.children_system
    return Cost(time.perf_counter() - begin, processor)
