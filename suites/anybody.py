"""The conformance test of whatever subject is named in EVERYRANK_SUBJECT, as ``module:NAME``."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import NoReturn

import pytest
from everyrank.suites.case import Case
from everyrank.suites.subject import Subject

SUBJECT: Subject | None = None


def _subject() -> tuple[Subject, Path]:
    if SUBJECT is not None:
        return SUBJECT, Path.cwd()
    named = os.environ.get("EVERYRANK_SUBJECT", "")
    module, _, name = named.partition(":")
    if not module or not name:
        _refuse(f"name a subject as module:NAME, not {named!r}")
    try:
        imported, problem = importlib.import_module(module), ""
    except ImportError as error:
        imported, problem = None, str(error)
    if imported is None:
        _refuse(f"{named}: {problem}")
    found = getattr(imported, name, None)
    if not isinstance(found, Subject):
        _refuse(f"{named} is not a Subject but {found!r}")
    return found, Path(imported.__file__ or ".").parent


def _refuse(text: str) -> NoReturn:
    pytest.fail(text, pytrace=False)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    subject, beside = _subject()
    metafunc.definition.add_marker(pytest.mark.conformance(subject, beside))


def test_conformance(case: Case) -> None:
    """The subject does what its contract says."""
    case.run()
