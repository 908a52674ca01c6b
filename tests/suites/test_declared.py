"""What is wrong with what a file's conformance tests declare is one message, which says what to write."""

from __future__ import annotations

import pytest
from everyrank.suites import Lack, Subject
from everyrank.suites.engine.case import cases
from everyrank.suites.errors import DeclarationError

from tests.engines import one_run
from tests.inner import Inner

_WRONG = """
    from everyrank.suites import Lack, Subject, conformance

    class Mine: ...

    LACKS = dict.fromkeys(["nothing", "no.*"], Lack(ValueError, ""))

    @conformance
    def test_bare(case): case.run()

    @conformance()
    def test_empty(case): case.run()

    @conformance(Mine)
    def test_class(case): case.run()

    @conformance([Subject("mine", "trainer", Mine)])
    def test_list(case): case.run()

    @conformance(Subject("mine", "trainer", Mine, sizes=(2, 77), lacks=LACKS, known="x.toml"))
    def test_wrong(case): case.run()

    @conformance(Subject("a", "trainr", Mine), Subject("b", "trainer", Mine), Subject("b", "trainer", Mine))
    def test_several(case): case.run()
"""

_BARE = """
    from everyrank.suites import conformance

    @conformance
    def test_bare(case): case.run()
"""

_TWO = """
    from everyrank.fixtures.exemplars.trainer import DataParallel, Sharded
    from everyrank.suites import Subject, conformance

    @conformance(*(Subject(build.__name__, "trainer", build, sizes=(1,)) for build in (DataParallel, Sharded)))
    def test_both(case): case.run()
"""


inner = one_run(
    {"test_wrong.py": _WRONG, "test_bare.py": _BARE, "test_two.py": _TWO},
    *("--law=late", "--profile=full", "--continue-on-collection-errors"),
)


def test_all_mistakes_of_a_file_are_named_at_once(inner: Inner) -> None:
    example = 'write @conformance(Subject("{0}", contract="trainer", build={0})), with one of the contracts '
    for line in (
        "test_wrong.py: 10 mistakes in what its conformance tests declare",
        f"  test_bare: @conformance has no subject: {example.format('mylib.Trainer')}",
        f"  test_empty: @conformance has no subject: {example.format('mylib.Trainer')}",
        f"  test_class: @conformance takes subjects, not the class Mine: {example.format('Mine')}",
        "  test_wrong: mine: trainer has no case at world size 77",
        "  test_wrong: mine: lacks['nothing'] matches no case of trainer",
        "  test_wrong: mine: lacks['no.*'] matches no case of trainer",
        "  test_list: @conformance takes each subject as an argument, not a list: write @conformance(*SUBJECTS)",
        "  test_several: unknown contract 'trainr'",
        "  test_several: 2 subjects of trainer are called b: give each a name of its own",
    ):
        assert f"\n{line}" in inner.out, line
    assert "/x.toml: a subject without known deviations names none" in inner.out


def test_one_mistake_is_one_line(inner: Inner) -> None:
    assert "\ntest_bare.py::test_bare: @conformance has no subject: write @conformance(Subject(" in inner.out


def test_a_test_takes_several_subjects(inner: Inner) -> None:
    assert inner.outcomes() == {
        f"test_both[{name}/trainer/late[ws1]]": "passed" for name in ("DataParallel", "Sharded")
    }, inner.out


def test_a_subject_names_all_its_mistakes() -> None:
    with pytest.raises(DeclarationError) as refused:
        Subject("mine", "trainer", 3, sizes=(0,), device="tpu", lacks={"x": 3})  # type: ignore[arg-type, dict-item]
    assert str(refused.value).splitlines() == [
        "mine: build must be callable, not 3",
        "mine: device must be 'cpu' or 'cuda', not 'tpu'",
        "mine: a world size must be a whole number of ranks, not 0",
        "mine: lacks['x'] must be Lack(error, reason), not 3",
    ]


def test_a_contract_names_all_that_does_not_fit_it() -> None:
    lacks = {pattern: Lack(ValueError, "") for pattern in ("a.*", "b.*")}
    with pytest.raises(DeclarationError) as refused:
        cases(Subject("mine", "trainer", print, lacks=lacks, declares=frozenset({"x", "y"})))
    assert len(str(refused.value).splitlines()) == 4
