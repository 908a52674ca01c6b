"""Subtests in ranks, by unittest and by pytest's fixture; and ranks send reports only to the controller."""

from __future__ import annotations

import pytest

from tests.engines import one_run
from tests.inner import Inner

SOURCE = """
    import unittest, warnings
    import pytest

    pytestmark = pytest.mark.world(2)

    class TestUnittest(unittest.TestCase):
        def test_one_of_three(self):
            for number in range(3):
                with self.subTest(number=number):
                    print("in", number)
                    self.assertNotEqual(number, 1)

        def test_good(self):
            with self.subTest(number=1):
                pass

        def test_skip_in_a_subtest(self):
            with self.subTest(number=1):
                self.skipTest("not this one")

    def test_fixture(subtests, world):
        for number in range(3):
            with subtests.test(number=number):
                assert number != world.rank
                world.barrier()

    def test_fixture_good(subtests, world):
        for number in range(3):
            with subtests.test("again", number=number):
                world.all_agree(number)

    def test_goes_on(subtests, world):
        with subtests.test("first"):
            assert world.size == 3
        with subtests.test("second"):
            assert world.size == 4
        world.barrier()
        print("went on")

    def test_after(world):
        pass

    def test_warns(world):
        warnings.warn("from every rank")
"""


inner = one_run(SOURCE, "-n1")


@pytest.mark.parametrize("name", ["test_good", "test_skip_in_a_subtest", "test_fixture_good", "test_after"])
def test_subtests_that_did_not_fail_are_not_reported(inner: Inner, name: str) -> None:
    assert inner[name].outcome == "passed", inner[name].text


@pytest.mark.parametrize("name", ["test_one_of_three", "test_fixture", "test_goes_on"])
def test_a_failed_subtest_fails_the_test(inner: Inner, name: str) -> None:
    assert inner[name].outcome == "failed"


def test_a_failed_subtest_is_named_in_the_summary(inner: Inner) -> None:
    assert "test_one_of_three - (number=1) " in inner.out


def test_a_subtest_that_failed_on_one_rank_is_named_with_its_rank(inner: Inner) -> None:
    """Each rank fails differently here; the first failure leads."""
    text = inner["test_fixture"].text
    lines = {rank: f"rank {rank}: AssertionError: assert {rank} != {rank}" for rank in (0, 1)}
    assert any(
        f"rank {lead} of 2 failed first, in call" in text
        and lines[1 - lead] in text
        and "in subtest (number=" in text
        for lead in (0, 1)
    )


def test_a_test_goes_on_after_a_failed_subtest(inner: Inner) -> None:
    assert "assert 2 == 3" in inner["test_goes_on"].text
    assert inner["test_goes_on"].sections["Captured stdout call, all 2 ranks"] == "went on\n"


def test_a_warning_of_the_ranks_is_reported_once(inner: Inner) -> None:
    """A forked rank of an xdist worker must not write to the worker's master."""
    assert [warning["text"] for warning in inner.warnings] == ["from every rank"]


def test_a_test_is_counted_once(inner: Inner) -> None:
    assert "3 failed, 5 passed, 1 warning" in inner.out
