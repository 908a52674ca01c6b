"""The commands of the kit: ``everyrank run`` and ``everyrank kill-matrix``. Each becomes a pytest run."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
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
    """Every rogue on every core case of its contract, rogue by law; 0 if each is killed by what it names alone.

    With --ledger: the rogues that stay green under that ledger; 0 if each is listed there, with a reason, in [blind].
    """
    parser = argparse.ArgumentParser(
        "everyrank kill-matrix",
        description=kill_matrix.__doc__,
        epilog=f"{_PYTEST} -n auto, or --generate=500: which rogues drawn sequences alone find, after how many draws",
    )
    parser.add_argument("--contract", choices=contracts(), action="append", help="only this one; may be repeated")
    parser.add_argument("--ledger", type=Path, help="judge the rogues under this ledger, and list its blind spots")
    given, rest = parser.parse_known_args(arguments)
    names = given.contract or contracts()
    if given.ledger is not None:
        try:
            names = _under(given.ledger, given.contract)
        except ValueError as error:
            parser.error(str(error))
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
    ledger = "" if given.ledger is None else str(given.ledger.absolute())
    environment = {"EVERYRANK_CONTRACTS": ",".join(names), "EVERYRANK_LEDGER": ledger}
    _pytest(["--pyargs", "everyrank.suites.killing", *quiet, *rest], **environment)


def _under(ledger: Path, named: list[str] | None) -> list[str]:
    """The contract of a ledger. Raises ValueError with what is wrong with either."""
    from everyrank.suites.blind import contract_of, tried_under
    from everyrank.suites.errors import LedgerError

    if named is not None and len(named) > 1:
        raise ValueError("--ledger is of one subject, and so of one --contract")
    try:
        names = named or [contract_of(ledger)]
        tried_under(names[0], ledger)
    except LedgerError as error:
        raise ValueError(str(error)) from None
    return names


def _pytest(arguments: list[str], **environment: str) -> NoReturn:
    """In place of this process: with what this one has imported, pytest could not rewrite the asserts."""
    sys.stdout.flush()
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    os.execve(sys.executable, command, {**os.environ, **environment})
