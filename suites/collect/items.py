"""Run a subject's cases: as pytest items, one for each case, or by a call."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
from everyrank.errors import RankLost, WorldTimeout
from everyrank.suites.collect.declared import all_mistakes, declared
from everyrank.suites.collect.filters import Filters
from everyrank.suites.collect.outcomes import Outcomes
from everyrank.suites.collect.stash import SELECTIONS
from everyrank.suites.engine.case import Case, cases
from everyrank.suites.engine.subject import Subject
from everyrank.suites.moves.cases import generated
from everyrank.suites.options import PLAN

Test = TypeVar("Test", bound=Callable[..., Any])

#: The time limit of a case in seconds. Alone, none takes longer than a few: one that takes this long hangs, on a busy
#: machine too.
CASE_TIMEOUT = 120.0


def conformance(*subjects: Subject) -> Callable[[Test], Test]:
    """Make the decorated test, which takes ``case``, run once for each case of each subject."""

    def decorate(test: Test) -> Test:
        marked: Test = _marked(subjects, test)
        return marked

    # The decorator without a subject gets the test itself: the collection says what to write.
    return _marked((), subjects[0]) if len(subjects) == 1 and _is_test(subjects[0]) else decorate


def _marked(subjects: Sequence[Subject], test: Any) -> Any:
    return pytest.mark.conformance(subjects, Path(inspect.getfile(test)).parent)(test)


def _is_test(value: Any) -> bool:
    return inspect.isfunction(value) and "case" in inspect.signature(value).parameters


def parametrize(metafunc: pytest.Metafunc) -> None:
    """Give a conformance test one parameter for each case of its subjects."""
    mark = metafunc.definition.get_closest_marker("conformance")
    assert mark is not None
    subjects, folder = mark.args
    tables, mistakes = declared(subjects, folder)
    if "case" not in metafunc.fixturenames:
        mistakes.append("a conformance test takes the argument `case`, and runs it by case.run()")
    if mistakes:
        pytest.fail(all_mistakes(metafunc.definition, mistakes), pytrace=False)
    selections = []
    for subject, table in zip(subjects, tables, strict=True):
        if (plan := metafunc.config.stash.get(PLAN, None)) is not None:
            table += generated(table, plan)
        selections.append(Filters.from_config(metafunc.config).select(subject, table))
    metafunc.config.stash.setdefault(SELECTIONS, {})[metafunc.definition.nodeid] = selections
    chosen = [
        parameter(case, mark, id=f"{selection.subject.name}/{case.id}" if len(subjects) > 1 else "")
        for selection in selections
        for case in selection.cases
    ]
    metafunc.parametrize("case", chosen, indirect=True)


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
