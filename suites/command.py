"""The commands of the kit: ``everyrank run`` and ``everyrank kill-matrix``. Each becomes a pytest run."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from everyrank.suites.contract import contracts

_PYTEST = "whatever else is given goes to pytest, such as"


def run(arguments: Sequence[str]) -> NoReturn:
    """All cases of one subject, and how many ended in which way."""
    parser = argparse.ArgumentParser(
        "everyrank run", description=run.__doc__, epilog=f"{_PYTEST} -n auto, --law=none.* or -x"
    )
    parser.add_argument("subject", help="module:NAME of a Subject; the module may lie in this folder")
    given, rest = parser.parse_known_args(arguments)
    _pytest(["--pyargs", "everyrank.suites.anybody", *rest], EVERYRANK_SUBJECT=given.subject)


def kill_matrix(arguments: Sequence[str]) -> NoReturn:
    """Every rogue on every core case of its contract, rogue by law; 0 if each is killed by what it names alone."""
    parser = argparse.ArgumentParser(
        "everyrank kill-matrix", description=kill_matrix.__doc__, epilog=f"{_PYTEST} -n auto"
    )
    parser.add_argument("--contract", choices=contracts(), action="append", help="only this one; may be repeated")
    given, rest = parser.parse_known_args(arguments)
    # A rogue fails wherever it runs: once is enough.
    quiet = [
        "--no-run-alone",
        "-q",
        "--no-summary",
        "--tb=no",
        "-p",
        "no:warnings",
        "-p",
        "everyrank.suites.kill_plugin",
    ]
    names = ",".join(given.contract or contracts())
    _pytest(["--pyargs", "everyrank.suites.killing", *quiet, *rest], EVERYRANK_CONTRACTS=names)


def _pytest(arguments: list[str], **environment: str) -> NoReturn:
    """In place of this process: with what this one has imported, pytest could not rewrite the asserts."""
    sys.stdout.flush()
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    os.execve(sys.executable, command, {**os.environ, **environment})
