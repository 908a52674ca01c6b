"""The commands of the kit: ``everyrank run`` and ``everyrank kill-matrix``. Each becomes a pytest run."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from everyrank.suites.engine.contract import contracts

_PYTEST = "all other arguments are passed to pytest, for example"


def run(arguments: Sequence[str]) -> NoReturn:
    """Run all cases of one subject, and print how many ended in which outcome."""
    parser = argparse.ArgumentParser(
        "everyrank run", description=run.__doc__, epilog=f"{_PYTEST} -n auto, --law=none.* or -x"
    )
    parser.add_argument("subject", help="module:NAME of a Subject; the module may be in this folder")
    given, rest = parser.parse_known_args(arguments)
    _pytest(["--pyargs", "everyrank.suites.collect.named_subject", *rest], EVERYRANK_SUBJECT=given.subject)


def kill_matrix(arguments: Sequence[str]) -> NoReturn:
    """Run every rogue on every core case of its contract, and print a table of rogues and laws.

    Exits with 0 if each rogue is killed by exactly the laws that it names. With --ledger it lists the rogues that
    stay green under that ledger, and exits with 0 if [blind] lists each of them with a reason.
    """
    parser = argparse.ArgumentParser(
        "everyrank kill-matrix",
        description=kill_matrix.__doc__,
        epilog=f"{_PYTEST} -n auto, or --generate=500 to show which rogues drawn sequences find and how fast",
    )
    parser.add_argument(
        "--contract", choices=contracts(), action="append", help="only this contract; may be repeated"
    )
    parser.add_argument("--ledger", type=Path, help="judge the rogues under this ledger, and list its blind spots")
    given, rest = parser.parse_known_args(arguments)
    names = given.contract or contracts()
    if given.ledger is not None:
        try:
            names = _contract_of_ledger(given.ledger, given.contract)
        except ValueError as error:
            parser.error(str(error))
    # A rogue also fails when it runs alone, so it is not repeated.
    quiet = [
        "--no-run-alone",
        "-q",
        "--no-summary",
        "--tb=no",
        "-p",
        "no:warnings",
        "-p",
        "everyrank.suites.kill.plugin",
    ]
    ledger = "" if given.ledger is None else str(given.ledger.absolute())
    environment = {"EVERYRANK_CONTRACTS": ",".join(names), "EVERYRANK_LEDGER": ledger}
    _pytest(["--pyargs", "everyrank.suites.kill.cases", *quiet, *rest], **environment)


def _contract_of_ledger(ledger: Path, named: list[str] | None) -> list[str]:
    """Return the contract of a ledger. Raise ValueError with a message if the ledger or the option is wrong."""
    from everyrank.suites.errors import DeclarationError, LedgerError
    from everyrank.suites.kill.blind_spots import contract_of, tried_under

    if named is not None and len(named) > 1:
        raise ValueError("--ledger belongs to one subject: give one --contract at most")
    try:
        names = named or [contract_of(ledger)]
        tried_under(names[0], ledger)
    except (DeclarationError, LedgerError) as error:
        raise ValueError(str(error)) from None
    return names


def _pytest(arguments: list[str], **environment: str) -> NoReturn:
    """Replace this process by pytest's: it has imported modules whose asserts pytest could not rewrite any more."""
    sys.stdout.flush()
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    os.execve(sys.executable, command, {**os.environ, **environment})
