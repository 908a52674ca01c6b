"""``everyrank mutate``: pytest with ``--mutate``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn


def main(arguments: Sequence[str]) -> NoReturn:
    """Run tests with one collective changed at a time, and list the changes that no assertion notices."""
    parser = argparse.ArgumentParser(
        "everyrank mutate",
        allow_abbrev=False,  # a word that begins as an option of ours may be one of pytest's, as --co
        description=main.__doc__,
        epilog="all other arguments are passed to pytest: files of tests, -k, -n auto, --run-file, --adopt",
    )
    parser.add_argument(
        "--budget", metavar="TIME", help="at most this much time for all changed tests (default: 60s)"
    )
    parser.add_argument("--seed", metavar="N", help="draws another sample, if not all fit (default: 0)")
    parser.add_argument("--floor", metavar="PART", help="a test fails if it notices less: 0.9 (default: 0)")
    given, rest = parser.parse_known_args(arguments)
    for option, value in (("--mutate-budget", given.budget), ("--mutate-seed", given.seed)):
        rest += [f"{option}={value}"] if value is not None else []
    rest += [f"--override-ini=everyrank_mutate={given.floor}"] if given.floor is not None else []
    os.execv(sys.executable, [sys.executable, "-m", "pytest", "--mutate", *rest])
