"""The verdict on tests that skip or are expected to fail, on all ranks or on some."""

from __future__ import annotations

import pytest

from tests.engines import LAUNCHERS, run_under
from tests.inner import Inner, Project

SOURCE = """
    import unittest
    import pytest
    import torch.distributed as dist

    world_of_2 = pytest.mark.world(2)


    @world_of_2
    def test_all_skip(world):
        pytest.skip("not today")

    @world_of_2
    def test_all_skip_in_unittest_style(world):
        raise unittest.SkipTest("not this way")

    class TestUnittest(unittest.TestCase):
        @world_of_2
        def test_skips(self):
            self.skipTest("not in this class")

    @world_of_2
    def test_one_skips(world):
        if world.rank == 1:
            pytest.skip("no room")

    @world_of_2
    def test_one_skips_while_the_other_waits(process_group, world):
        if world.rank == 1:
            pytest.skip("no room")
        dist.barrier()

    @world_of_2
    def test_one_skips_in_unittest_style(world):
        if world.rank == 0:
            raise unittest.SkipTest("no room")

    @pytest.fixture
    def half_there(world):
        if world.rank == 0:
            pytest.skip("no data here")

    @world_of_2
    def test_a_fixture_skips_on_one_rank(half_there):
        pass

    # --- xfail

    @world_of_2
    @pytest.mark.xfail(reason="known")
    def test_xfail_on_all(world):
        assert False

    @world_of_2
    @pytest.mark.xfail(reason="known")
    def test_xfail_on_one(process_group, world):
        assert world.rank == 0
        dist.barrier()

    @world_of_2
    @pytest.mark.xfail(reason="known")
    def test_xpass(world):
        pass

    @world_of_2
    @pytest.mark.xfail(reason="known", strict=True)
    def test_strict_xpass(world):
        pass

    @world_of_2
    @pytest.mark.xfail(reason="known", raises=ValueError)
    def test_xfail_with_another_exception(world):
        raise KeyError("not what was expected")

    @world_of_2
    def test_xfail_at_run_time(world):
        pytest.xfail("found out late")
"""


@pytest.fixture(scope="module", params=LAUNCHERS)
def worlds(request: pytest.FixtureRequest, module_project: Project) -> Inner:
    module_project.write("test_inner.py", SOURCE)
    return run_under(request.param, module_project, "--fresh-worlds")


# --- skips -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("test", "reason"),
    [
        ("test_all_skip", "not today"),
        ("test_all_skip_in_unittest_style", "not this way"),
        ("TestUnittest::test_skips", "not in this class"),
    ],
)
def test_a_skip_on_all_ranks_is_a_skip_with_its_reason(worlds: Inner, test: str, reason: str) -> None:
    assert worlds[test].outcome == "skipped"
    assert f"Skipped: {reason}" in worlds[test].text


@pytest.mark.parametrize(
    ("test", "line"),
    [
        ("test_one_skips", "rank 1 skipped: no room"),
        ("test_one_skips_while_the_other_waits", "rank 1 skipped: no room"),
        ("test_one_skips_in_unittest_style", "rank 0 skipped: no room"),
        ("test_a_fixture_skips_on_one_rank", "rank 0 skipped: no data here"),
    ],
)
def test_a_skip_on_some_ranks_is_a_failure(worlds: Inner, test: str, line: str) -> None:
    result = worlds[test]
    assert result.outcome == "failed"
    assert "ranks disagree" in result.text
    assert line in result.text


# --- xfail -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("test", "outcome"),
    [
        ("test_xfail_on_all", "xfailed"),
        ("test_xfail_on_one", "xfailed"),
        ("test_xfail_at_run_time", "xfailed"),
        ("test_xpass", "xpassed"),
        ("test_strict_xpass", "failed"),
        ("test_xfail_with_another_exception", "failed"),
    ],
)
def test_xfail_is_as_pytest_has_it(worlds: Inner, test: str, outcome: str) -> None:
    assert worlds[test].outcome == outcome


def test_a_strict_xpass_is_named_as_strict(worlds: Inner) -> None:
    assert "[XPASS(strict)] known" in worlds["test_strict_xpass"].text
