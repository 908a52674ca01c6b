"""The commands of the kit: ``everyrank run`` and ``kill-matrix``, which become pytest runs, and ``cases``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from everyrank.suites.engine.contract import contract, contracts
from everyrank.suites.engine.subject import Subject
from everyrank.suites.errors import DeclarationError, LedgerError
from everyrank.suites.kill import sample, tables

_PYTEST = "all other arguments are passed to pytest, for example"


def run(arguments: Sequence[str]) -> NoReturn:
    """Run all cases of one subject, and print how many ended in which outcome."""
    parser = argparse.ArgumentParser(
        "everyrank run", description=run.__doc__, epilog=f"{_PYTEST} -n auto, --law=none.* or -x"
    )
    parser.add_argument("subject", help="module:NAME of a Subject; the module may be in this folder")
    given, rest = parser.parse_known_args(arguments)
    _pytest(["--pyargs", "everyrank.suites.collect.named_subject", *rest], EVERYRANK_SUBJECT=given.subject)


def count(arguments: Sequence[str]) -> int:
    """Print how many cases a subject has in each profile, by law, optimizer and world size.

    The name of a contract stands for a subject that claims all of it. A row of the optimizer table that the subject's
    module registers is counted with the others: so this shows what a value costs. --laws and --lacks print what the
    contract asks for instead, and --moves which kinds of state its scripts change and read.
    """
    parser = argparse.ArgumentParser("everyrank cases", description=count.__doc__)
    parser.add_argument("subject", help=f"module:NAME of a Subject, or a contract: {', '.join(contracts())}")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--laws", action="store_true", help="print the laws")
    instead.add_argument("--lacks", action="store_true", help="print the names of what a subject may lack")
    instead.add_argument("--moves", action="store_true", help="print the kinds of state by moves, with the holes")
    given = parser.parse_args(arguments)
    named = given.subject

    from everyrank.suites.collect import cost, listing, named_subject

    sys.path.insert(0, os.getcwd())
    try:
        subject, folder = named_subject.load(named) if ":" in named else (Subject(named, named, print), None)
        asked = [name for name in ("laws", "lacks", "moves") if getattr(given, name)]
        if asked:
            lines = list(getattr(listing, asked[0])(contract(subject.contract)))
        else:
            lines = list(cost.table(subject, folder))
    except (DeclarationError, LedgerError) as error:
        parser.error(str(error))
    print("\n".join(lines))
    return 0


def kill_matrix(arguments: Sequence[str]) -> NoReturn:
    """Run every rogue on the core cases of the laws that it names, and of a part of all others; print a table.

    Exits with 0 if each rogue is killed by the laws that it names and by no other. With --ledger it lists the rogues
    that stay green under that ledger, and exits with 0 if [blind] lists each of them with a reason.
    """
    parser = argparse.ArgumentParser(
        "everyrank kill-matrix",
        allow_abbrev=False,  # a word that begins as an option of ours may be one of pytest's, as --co
        description=kill_matrix.__doc__,
        epilog=f"{_PYTEST} -n auto, or --generate=500 to show which rogues drawn sequences find and how fast",
    )
    parser.add_argument(
        "--contract",
        choices=[*contracts(), *tables.tables()],
        action="append",
        help="only this contract or table; may be repeated",
    )
    parser.add_argument(
        "--others",
        metavar="PART",
        help="which of the laws that a rogue does not name are tried: all, or a part such as 3/12 "
        "(default: one of 12 parts, in turn by the commit)",
    )
    parser.add_argument(
        "--write-killers",
        action="store_true",
        help="write which case of crossings kills each rogue: later samples try it first",
    )
    parser.add_argument("--ledger", type=Path, help="judge the rogues under this ledger, and list its blind spots")
    given, rest = parser.parse_known_args(arguments)
    names = [name for name in given.contract or contracts() if name in contracts()]
    others = [name for name in given.contract or tables.tables() if name in tables.tables()]
    if given.ledger is not None or any(word.startswith("--generate") for word in rest):
        if given.contract and others:
            parser.error(f"{others[0]} is no contract: it has no ledgers and no player")
        others = []
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
        "--disable-warnings",
        "-p",
        "everyrank.suites.kill.plugin",
    ]
    ledger = "" if given.ledger is None else str(given.ledger.absolute())
    try:
        part = sample.by_commit() if given.others is None else sample.parsed(given.others)
    except ValueError as error:
        parser.error(str(error))
    environment = {"EVERYRANK_CONTRACTS": ",".join(names), "EVERYRANK_LEDGER": ledger}
    environment |= {sample.WRITES_KILLERS: "1"} if given.write_killers else {}
    modules = [*(["everyrank.suites.kill.cases"] if names else []), *map(tables.tests_of, others)]
    _pytest(
        ["--pyargs", *modules, *quiet, *rest],
        **{**environment, **tables.as_environment(others), **sample.as_environment(part)},
    )


def _contract_of_ledger(ledger: Path, named: list[str] | None) -> list[str]:
    """Return the contract of a ledger. Raise ValueError with a message if the ledger or the option is wrong."""
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
