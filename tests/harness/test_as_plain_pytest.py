"""Tests on ranks end as plain pytest lets them end: each phase, its reason and message, its output and its warnings.

The same project runs twice: on two ranks, and without everyrank.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.inner import Inner, Project

ENDS = """
    import logging, sys, unittest, warnings
    import pytest

    pytestmark = pytest.mark.world(2)
    known = pytest.mark.xfail(reason="known")
    strict = pytest.mark.xfail(reason="known", strict=True)

    @pytest.fixture
    def fails():
        raise ValueError("in setup")

    @pytest.fixture
    def skips():
        pytest.skip("in setup")

    @pytest.fixture
    def fails_late():
        yield
        raise ValueError("in teardown")

    @pytest.fixture
    def skips_late():
        yield
        pytest.skip("in teardown")

    @pytest.fixture
    def expects(fails_late):
        pytest.xfail("in setup")

    @pytest.fixture
    def prints():
        print("up")
        logging.getLogger().warning("logged")
        yield
        print("down", file=sys.stderr)

    @pytest.fixture
    def warns():
        warnings.warn("a fixture warns", DeprecationWarning)
        yield
        warnings.warn("a fixture warns", DeprecationWarning)

    # --- a phase beside the one that decides

    def test_skips_and_fails_late(fails_late):
        pytest.skip("in call")

    def test_skips_in_setup_and_fails_late(fails_late, skips):
        pass

    def test_fails_in_setup_and_late(fails_late, fails):
        pass

    def test_expects_in_setup_and_fails_late(expects):
        pass

    @pytest.mark.xfail(reason="known", raises=AssertionError)
    def test_fails_as_expected_and_fails_late(fails_late):
        assert False

    @known
    def test_fails_as_expected_twice(fails_late):
        assert False

    @known
    def test_xpasses_and_fails_late_as_expected(fails_late):
        pass

    @strict
    def test_xpasses_strictly_and_fails_late_as_expected(fails_late):
        pass

    def test_skips_late(skips_late):
        pass

    def test_fails_and_skips_late(skips_late):
        assert False

    def test_fails_and_fails_late(fails_late):
        assert False

    # --- marks

    @pytest.mark.skip(reason="the second mark")
    @pytest.mark.skipif(True, reason="the first mark")
    def test_two_marks():
        pass

    @pytest.mark.skip(reason="the second mark")
    @pytest.mark.skipif("sys.platform != 'plan9'", reason="a condition of the ranks")
    def test_two_marks_with_a_condition():
        pass

    @pytest.mark.skip("one", "two")
    def test_wrong_skip():
        pass

    @pytest.mark.skip(no="reason")
    def test_wrong_keyword():
        pass

    @pytest.mark.skip(reason="")
    def test_no_reason():
        pass

    @pytest.mark.skipif
    def test_no_condition():
        pass

    @pytest.mark.skipif(True)
    def test_condition_without_reason():
        pass

    @pytest.mark.skipif("no_such_name", reason="never")
    def test_wrong_condition():
        pass

    @pytest.mark.xfail(reason="known", run=False)
    def test_does_not_run():
        pass

    @known
    def test_is_known_and_skips(skips):
        pass

    @pytest.mark.parametrize("number", [1, pytest.param(2, marks=known), pytest.param(3, marks=pytest.mark.skip)])
    def test_marked_parameters(number):
        assert number == 1

    @pytest.mark.parametrize("number", [])
    def test_no_parameters(number):
        pass

    def test_is_known_since_it_runs(request):
        request.node.add_marker(known)
        assert False

    # --- output, properties and warnings

    def test_output_of_each_phase(prints):
        print("call")
        assert False

    def test_output_of_a_test_that_fails_late(fails_late, prints):
        print("call")

    def test_properties(record_property, fails_late):
        record_property("step", 1)
        record_property("step", "two")

    def test_warnings(warns):
        for _ in range(3):
            warnings.warn("a fixture warns", DeprecationWarning)

    @pytest.mark.filterwarnings("error")
    def test_warnings_are_errors():
        warnings.warn("an error")

    # --- unittest

    class TestSkips(unittest.TestCase):
        @classmethod
        def setUpClass(cls):
            raise unittest.SkipTest("the class")

        def test_skipped(self):
            pass

    class TestFailsLate(unittest.TestCase):
        @classmethod
        def tearDownClass(cls):
            raise ValueError("the class")

        def test_first(self):
            pass

        def test_second(self):
            self.skipTest("in call")

    class TestExpects(unittest.TestCase):
        @unittest.expectedFailure
        def test_fails(self):
            self.fail("as expected")

        @unittest.expectedFailure
        def test_passes(self):
            pass
"""

OTHERS = {
    "test_stops.py": """
        import pytest

        @pytest.fixture(scope="session")
        def fails_late():
            yield
            raise ValueError("at the end")

        def test_in_one_process(fails_late):
            pass

        @pytest.mark.world(2)
        def test_on_ranks():
            x = 3
            assert x == 4

        @pytest.mark.world(2)
        def test_later():
            pass
    """,
    "test_fails_late.py": """
        import pytest

        @pytest.fixture(scope="module")
        def fails_late():
            yield
            pytest.fail("at the end")

        def test_in_one_process(fails_late):
            pass

        @pytest.mark.world(2)
        def test_ends_its_file():
            pass
    """,
    "test_requests.py": """
        import pytest

        pytestmark = pytest.mark.world(2)

        def test_stops_the_run(request):
            request.session.shouldfail = "enough"

        def test_never_runs():
            pass
    """,
}


def ends(inner: Inner, with_output: bool = True) -> dict[str, list[tuple[Any, ...]]]:
    """Return what each phase of each test is reported to have come to, without the names of ranks."""
    found: dict[str, list[tuple[Any, ...]]] = {}
    for test in inner.tests.values():
        for report in test.reports:
            reason = report["text"].rsplit(", ", 1)[-1] if report["text"].startswith("(") else ""
            output = {(name.split(",")[0], text) for name, text in report["sections"] if name.startswith("Captured")}
            output = output if with_output else set()
            noted = [pair for pair in report["properties"] if pair[0] != "verdict"]
            end = (report["when"], report["outcome"], report["wasxfail"], reason, report["message"], output, noted)
            found.setdefault(test.nodeid, []).append(end)
    return found


@pytest.fixture(scope="module")
def runs(module_project: Project) -> tuple[Inner, Inner]:
    module_project.write("test_ends.py", ENDS)
    return both(module_project, "test_ends.py")


def both(project: Project, *arguments: str) -> tuple[Inner, Inner]:
    return project.run_plain(*arguments), project.run(*arguments)


def summed_up(inner: Inner) -> tuple[int, str]:
    return inner.code, inner.out.splitlines()[-1].strip("= ").rpartition(" in ")[0]


def test_every_phase_ends_as_in_plain_pytest(runs: tuple[Inner, Inner]) -> None:
    plain, on_ranks = map(ends, runs)
    assert len(plain) == ENDS.count("def test_") + 2  # of three parameters
    different = {test: (end, on_ranks[test]) for test, end in plain.items() if end != on_ranks[test]}
    assert different == {}


def test_the_run_is_summed_up_as_in_plain_pytest(runs: tuple[Inner, Inner]) -> None:
    plain, on_ranks = map(summed_up, runs)
    assert plain == on_ranks


def test_warnings_are_as_many_as_in_plain_pytest(runs: tuple[Inner, Inner]) -> None:
    plain, on_ranks = (sorted((line["nodeid"], line["text"]) for line in run.warnings) for run in runs)
    assert plain == on_ranks
    assert len(plain) == 5


@pytest.mark.parametrize(
    "arguments",
    [
        ("test_stops.py", "-x"),
        ("test_stops.py", "--tb=native"),
        ("test_stops.py", "--setup-only"),
        ("test_stops.py", "--setup-plan"),
        ("test_fails_late.py",),
        ("test_requests.py",),
    ],
    ids=" ".join,
)
def test_the_run_goes_as_in_plain_pytest(module_project: Project, arguments: tuple[str, ...]) -> None:
    module_project.write(arguments[0], OTHERS[arguments[0]])
    plain, on_ranks = both(module_project, *arguments)
    assert ends(on_ranks, with_output=False) == ends(plain, with_output=False)
    assert summed_up(on_ranks) == summed_up(plain)


def test_a_reason_is_in_the_summary_though_pytest_has_none(module_project: Project) -> None:
    module_project.write(
        "test_reasons.py",
        """
        import pytest

        pytestmark = pytest.mark.world(2)

        @pytest.fixture(scope="module", params=[1, 2])
        def fails_late(request):
            request.addfinalizer(lambda: 1 / 0)
            request.addfinalizer(lambda: {}["absent"])

        @pytest.fixture(scope="module")
        def skips_late(request):
            request.addfinalizer(lambda: pytest.skip("at the end"))

        def test_no_fixture(absent):
            pass

        @pytest.mark.parametrize("number", [1, 2])
        def test_fails_while_it_is_up(skips_late, number):
            assert False

        @pytest.mark.world(3)
        def test_ends_its_world(fails_late):
            assert False
        """,
    )
    inner = module_project.run("test_reasons.py")
    assert "test_no_fixture - fixture 'absent' not found" in inner.out
    assert inner["test_fails_while_it_is_up[1]"].reports[-1]["outcome"] == "passed", "a skip is no failure"
    assert "ERROR test_reasons.py::test_ends_its_world[1] - ExceptionGroup: errors" in inner.out
