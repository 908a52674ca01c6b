"""What is wrong with what a conformance test declares: all of it at once, with what to write instead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from everyrank.suites.engine.case import Case, cases
from everyrank.suites.engine.contract import contracts
from everyrank.suites.engine.subject import Subject
from everyrank.suites.errors import DeclarationError, LedgerError, kind_of


def declared(subjects: Sequence[Any], folder: Path) -> tuple[list[list[Case]], list[str]]:
    """Return the cases of each subject, and what is wrong with their declarations: one of both is empty."""
    tables: list[list[Case]] = []
    mistakes = [] if subjects else [_no_subject()]
    for subject in subjects:
        if not isinstance(subject, Subject):
            mistakes.append(_no_such_subject(subject))
            continue
        try:
            tables.append(cases(subject, folder))
        except (DeclarationError, LedgerError) as error:
            mistakes += str(error).splitlines()
    mistakes += _twice(subject for subject in subjects if isinstance(subject, Subject))
    return ([], mistakes) if mistakes else (tables, [])


def all_mistakes(test: pytest.Item, mistakes: Sequence[str]) -> str:
    """Return the mistakes of a test and of the other conformance tests of its file, which pytest would not reach."""
    by_test = {getattr(test, "originalname", test.name): list(mistakes)}
    for name, other in vars(getattr(test, "module", None)).items():
        for mark in getattr(other, "pytestmark", ()) if name not in by_test else ():
            if mark.name == "conformance" and (others := declared(*mark.args)[1]):
                by_test[name] = others
    if len(by_test) == 1 and len(mistakes) == 1:
        return f"{test.nodeid.removeprefix('::')}: {mistakes[0]}"  # outside of the root folder it has no path
    lines = [f"{test.path.name}: {sum(map(len, by_test.values()))} mistakes in what its conformance tests declare"]
    return "\n".join([*lines, *(f"  {name}: {mistake}" for name, others in by_test.items() for mistake in others)])


def _no_subject() -> str:
    return f"@conformance has no subject: write {_example('mylib.Trainer', 'mylib.Trainer')}"


def _no_such_subject(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"@conformance takes each subject as an argument, not {kind_of(value)}: write @conformance(*SUBJECTS)"
    name = getattr(value, "__name__", "mylib.Trainer") if callable(value) else "mylib.Trainer"
    return f"@conformance takes subjects, not {kind_of(value)}: write {_example(name, name)}"


def _example(name: str, build: str) -> str:
    known = ", ".join(contracts())
    return f'@conformance(Subject("{name}", contract="trainer", build={build})), with one of the contracts {known}'


def _twice(subjects: Iterator[Subject]) -> list[str]:
    counts = Counter((subject.contract_name, subject.name) for subject in subjects)
    return [
        f"{count} subjects of {contract} are called {name}: give each a name of its own"
        for (contract, name), count in counts.items()
        if count > 1
    ]
