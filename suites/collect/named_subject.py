"""The conformance test of the subject that EVERYRANK_SUBJECT names, as ``module:NAME``."""

from __future__ import annotations

import importlib
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest
from everyrank.suites.engine.case import Case
from everyrank.suites.engine.subject import Subject
from everyrank.suites.errors import DeclarationError, kind_of

#: The subject given to `run`, and the folder of its ledger; only in the process that called `run`.
SUBJECT: tuple[Subject, Path] | None = None
#: An option of each call of `run`: where warnings are errors, pytest would end because the process of the call has
#: imported everyrank already.
QUIET = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]


def _subject() -> tuple[Subject, Path]:
    if SUBJECT is not None:
        return SUBJECT
    named = os.environ.get("EVERYRANK_SUBJECT", "")
    if not named and "PYTEST_XDIST_WORKER" in os.environ:
        text = "run(SUBJECT) is for one process: for several, `everyrank run module:NAME -n auto`"
        raise pytest.fail.Exception(text, pytrace=False)
    try:
        return load(named)
    except DeclarationError as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None


def load(named: str) -> tuple[Subject, Path]:
    """Return the subject called ``module:NAME``, and the folder of its ledger. Raise DeclarationError without one."""
    module, _, name = named.partition(":")
    if not module or not name:
        raise DeclarationError(f"name a subject as module:NAME, not {named!r}")
    try:
        imported = importlib.import_module(module)
    except ImportError as error:
        raise DeclarationError(f"{named}: {error}") from error
    except SyntaxError as error:
        raise DeclarationError(f"{named}: {module} is not Python: {error}") from error
    subject = getattr(imported, name, None)
    if not isinstance(subject, Subject):
        problem = f"is not a Subject but {kind_of(subject)}" if hasattr(imported, name) else "is not there"
        there = [known for known, value in vars(imported).items() if isinstance(value, Subject)]
        raise DeclarationError(f"{named} {problem}; {module} has {', '.join(there) or 'no Subject'}")
    return subject, Path(imported.__file__ or ".").parent


def _repeat_command(case: str, options: Sequence[str]) -> str:
    """Return the call or the command that runs this case again."""
    chosen = ["-k", case, *_without(QUIET, list(options))]
    if SUBJECT is not None:
        return f"everyrank.suites.run(SUBJECT, {', '.join(map(repr, chosen))})"
    return shlex.join(["everyrank", "run", os.environ["EVERYRANK_SUBJECT"], *chosen])


def _without(pair: list[str], options: list[str]) -> list[str]:
    indexes = [index for index in range(len(options) - 1) if options[index : index + 2] == pair]
    return [*options[: indexes[0]], *options[indexes[0] + 2 :]] if indexes else options


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    subject, folder = _subject()
    metafunc.definition.add_marker(pytest.mark.conformance((subject,), folder, again=_repeat_command))


def test_conformance(case: Case) -> None:
    """The subject does what its contract says."""
    case.run()
