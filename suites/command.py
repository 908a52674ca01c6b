"""The commands of the kit: ``everyrank run`` and ``everyrank kill-matrix``."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from everyrank.suites import kill
from everyrank.suites.contract import contracts
from everyrank.suites.items import Outcomes

_PYTEST = "whatever else is given goes to pytest, such as -n auto, --law=none.* or -x"


def run(arguments: Sequence[str]) -> int:
    """All cases of one subject, and how many ended in which way."""
    parser = argparse.ArgumentParser("everyrank run", description=run.__doc__, epilog=_PYTEST)
    parser.add_argument("subject", help="module:NAME of a Subject")
    given, rest = parser.parse_known_args(arguments)
    from everyrank.suites import anybody

    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` has it: the subject may lie right here
    outcomes = Outcomes()
    with _environment(EVERYRANK_SUBJECT=given.subject), _told("cases", outcomes):
        return _pytest([str(anybody.__file__), *rest], outcomes)


def kill_matrix(arguments: Sequence[str]) -> int:
    """Every rogue on every core case of its contract, rogue by law; 0 if each is killed by what it names alone."""
    parser = argparse.ArgumentParser("everyrank kill-matrix", description=kill_matrix.__doc__, epilog=_PYTEST)
    parser.add_argument("--contract", choices=contracts(), action="append", help="only this one; may be repeated")
    given, rest = parser.parse_known_args(arguments)
    from everyrank.suites import killing

    names = given.contract or contracts()
    outcomes = Outcomes()
    with _environment(EVERYRANK_CONTRACTS=",".join(names)), _told("kills tried", outcomes):
        quiet = ["-q", "--no-summary", "--tb=no", "-p", "no:warnings"]
        code = _pytest([str(killing.__file__), *quiet, *rest], outcomes)
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        return code
    matrices = [kill.Matrix(name, outcomes.cells) for name in names]
    print("\n\n".join(matrix.text() for matrix in matrices))
    return 1 if any(matrix.faults() for matrix in matrices) else 0


def _pytest(arguments: list[str], outcomes: Outcomes) -> int:
    return int(pytest.main(["-p", "no:cacheprovider", *arguments], plugins=[outcomes]))


@contextmanager
def _told(what: str, outcomes: Outcomes) -> Iterator[None]:
    """Say afterwards how many there were, and how fast."""
    start = time.monotonic()
    yield
    seconds = time.monotonic() - start
    if outcomes.cells:
        kinds = ", ".join(f"{count} {kind}" for kind, count in Counter(outcomes.cells.values()).most_common())
        rate = len(outcomes.cells) / seconds
        print(f"{len(outcomes.cells)} {what} in {seconds:.0f} s ({rate:.1f} a second): {kinds}")


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    """What workers of pytest-xdist must know too."""
    before: dict[str, Any] = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
