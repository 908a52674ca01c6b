"""Run a subject's cases: as pytest items, one for each case, or by a call."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from everyrank.errors import RankLost, WorldTimeout
from everyrank.suites.collect.filters import Filters
from everyrank.suites.collect.outcomes import Outcomes
from everyrank.suites.collect.stash import SELECTIONS
from everyrank.suites.engine.case import Case, cases
from everyrank.suites.engine.subject import Subject
from everyrank.suites.errors import DeclarationError, LedgerError
from everyrank.suites.generate.cases import generated
from everyrank.suites.generate.options import PLAN

Test = TypeVar("Test", bound=Callable[..., Any])

#: The time limit of a case in seconds. No case waits for long, so one that takes this long hangs.
CASE_TIMEOUT = 30.0


def conformance(subject: Subject) -> Callable[[Test], Test]:
    """Make the decorated test, which takes ``case``, run once for each case of the subject."""

    def decorate(test: Test) -> Test:
        folder = Path(inspect.getfile(test)).parent
        marked: Test = pytest.mark.conformance(subject, folder)(test)
        return marked

    return decorate


def parametrize(metafunc: pytest.Metafunc) -> None:
    """Give a conformance test one parameter for each case of its subject."""
    mark = metafunc.definition.get_closest_marker("conformance")
    assert mark is not None
    subject, folder = mark.args
    if "case" not in metafunc.fixturenames:
        pytest.fail(f"{metafunc.definition.nodeid}: a conformance test takes the argument `case`", pytrace=False)
    problem = ""
    try:
        found = cases(subject, folder)
        if (plan := metafunc.config.stash.get(PLAN, None)) is not None:
            found += generated(found, plan)
    except (DeclarationError, LedgerError) as error:
        problem = str(error)
    if problem:
        pytest.fail(problem, pytrace=False)
    selection = Filters.from_config(metafunc.config).select(subject, found)
    metafunc.config.stash.setdefault(SELECTIONS, {})[metafunc.definition.nodeid] = selection
    metafunc.parametrize("case", [parameter(case, mark) for case in selection.cases], indirect=True)


def parameter(case: Case, *further: Any, id: str = "") -> Any:
    """Return the pytest parameter of a case, with further marks."""
    limit = CASE_TIMEOUT if case.law.timeout is None else case.law.timeout
    gpus = case.point.size if case.subject.device == "cuda" else 0
    marks = [pytest.mark.world(case.point.size, gpus=gpus, timeout=limit, fresh=case.law.fresh)]
    marks += [pytest.mark.rank_fixtures(*case.fixtures), *case.contract.marks, *further]
    if case.subject.warns:
        marks.append(pytest.mark.filterwarnings(*case.subject.warns))
    if case.entry is not None and case.entry.kind in ("crash", "timeout"):
        lost = RankLost if case.entry.kind == "crash" else WorldTimeout
        marks.append(pytest.mark.xfail(raises=lost, reason=case.entry.reason, strict=True))
    return pytest.param(case, id=id or case.id, marks=marks)


def run(subject: Subject, *arguments: str) -> dict[str, str]:
    """Run all cases of a subject from this process; returns the outcome of each case.

    The subject's ledger is looked up in the folder of the caller's file. Raise if there can be no result: if the
    declaration or the ledger is wrong, if pytest refuses the arguments, or if they leave no case.
    """
    from everyrank.suites.collect import named_subject

    caller = sys._getframe(1).f_globals.get("__file__")
    folder = Path(caller).resolve().parent if caller else Path.cwd()  # there is no file at a prompt
    cases(subject, folder)
    outcomes = Outcomes()
    plain = ["-q", "-p", "no:cacheprovider", *named_subject.QUIET]
    named_subject.SUBJECT = subject, folder
    try:
        code = pytest.main([*plain, *arguments, "--pyargs", named_subject.__name__], plugins=[outcomes])
    finally:
        named_subject.SUBJECT = None
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) or not outcomes.cells:
        raise RuntimeError(f"no verdict on {subject.name}: pytest ended with {pytest.ExitCode(code).name}")
    return {case: outcome for (_, case), outcome in outcomes.cells.items()}
