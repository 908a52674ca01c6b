"""The verdict's truth table on real worlds: exceptions, fixtures, odd texts, skips, expected failures."""

from __future__ import annotations

import pytest

from tests.engines import LAUNCHERS, one_run
from tests.inner import Inner, Project

SOURCE = """
    import os, sys, unittest
    import pytest, torch
    import torch.distributed as dist

    world_of_4 = pytest.mark.world(4)
    world_of_2 = pytest.mark.world(2)


    @world_of_4
    def test_one_raises_while_others_reduce(process_group, world):
        if world.rank == 1:
            raise RuntimeError("out of luck")
        dist.all_reduce(torch.ones(1))

    @world_of_4
    def test_all_raise_the_same(world):
        raise RuntimeError("wrong everywhere")

    @world_of_2
    def test_each_asserts_something_else(world):
        assert world.rank == 100 + world.rank

    @world_of_2
    def test_sys_exit_0(world):
        if world.rank == 1:
            sys.exit(0)

    # --- fixtures

    @pytest.fixture
    def breaks_in_setup(world):
        assert world.rank == 0, "no setup on this rank"

    @pytest.fixture
    def breaks_in_teardown(world):
        yield
        assert world.rank == 0, "no teardown on this rank"

    @world_of_2
    def test_setup_error(breaks_in_setup):
        pass

    @world_of_2
    def test_teardown_error(breaks_in_teardown):
        pass

    @world_of_2
    def test_call_and_teardown_fail(breaks_in_teardown, world):
        assert world.rank == 1, "no call on this rank"

    # --- exceptions and texts that are hard to transmit

    class NotPicklable(Exception):
        def __init__(self, text):
            super().__init__(text)
            self.held = lambda: None

        def __reduce__(self):
            raise TypeError("not me")

    class NoText(Exception):
        def __str__(self):
            raise RuntimeError("no text")

        __repr__ = __str__

    @world_of_2
    def test_not_picklable(world):
        raise NotPicklable("cannot travel")

    @world_of_2
    def test_no_text(world):
        raise NoText

    @world_of_2
    def test_lone_surrogates(world):
        print("printed \\udc80")
        assert "said \\udc80" == ""

    @world_of_2
    def test_long_text(world):
        raise RuntimeError("a" * 1_000_000 + "the end")

    @world_of_2
    def test_exception_group(world):
        raise ExceptionGroup("several", [ValueError("one"), KeyError("two")])

    @world_of_2
    def test_4_mb_of_output(world):
        print("the first line")
        for _ in range(4):
            sys.stdout.write("x" * 1_000_000)
        print("\\nthe last line")
        assert world.rank == 0

    @world_of_2
    def test_100_mb_written_past_python(world):
        os.write(1, b"the first line")
        for _ in range(100):
            os.write(1, b"y" * 1_000_000)
        os.write(1, b"the last line")

    # --- the other ways out

    @world_of_2
    def test_keyboard_interrupt(process_group, world):
        if world.rank == 1:
            raise KeyboardInterrupt
        dist.barrier()

    @world_of_2
    def test_closes_its_standard_streams(world):
        os.closerange(0, 3)

    # --- skips

    @world_of_2
    def test_all_skip(world):
        pytest.skip("not today")

    class TestUnittest(unittest.TestCase):
        @world_of_2
        def test_skips(self):
            self.skipTest("not in this class")

    @world_of_2
    def test_one_skips_while_the_other_waits(process_group, world):
        if world.rank == 1:
            pytest.skip("no room")
        dist.barrier()

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

#: A test parametrized from what differs between processes. Only clean interpreters can disagree on it.
DISAGREEING = """
    import os
    import pytest

    @pytest.mark.world(2)
    @pytest.mark.parametrize("value", [os.getpid()])
    def test_other_ids(value, world):
        pass

    @pytest.mark.world(2)
    @pytest.mark.parametrize("value", [os.getpid()], ids=["same"])
    def test_other_values(value, world):
        pass
"""


worlds = one_run(SOURCE, "--fresh-worlds", launchers=LAUNCHERS)


#: test -> its outcome, and texts of its report; one after ``^`` is where the report begins.
REPORTS = {
    "test_one_raises_while_others_reduce": (
        "failed",
        "^rank 1 of 4 failed first, in call",
        "RuntimeError: out of luck",
        "ranks 0,2,3: waiting in all_reduce at test_inner.py:14",
    ),
    "test_all_raise_the_same": ("failed", "^on ranks 0-3\n", "RuntimeError: wrong everywhere"),
    "test_each_asserts_something_else": ("failed", "assert 0 == (100 + 0)", "assert 1 == (100 + 1)"),
    "test_sys_exit_0": ("failed", "SystemExit: 0"),
    # fixtures
    "test_setup_error": ("error", "rank 1 of 2 failed first, in setup", "no setup on this rank"),
    "test_teardown_error": ("error", "rank 1 of 2 failed first, in teardown", "no teardown on this rank"),
    # texts that are hard to transmit
    "test_not_picklable": ("failed", "^on ranks 0,1\n", "NotPicklable: cannot travel"),
    "test_no_text": ("failed", "^on ranks 0,1\n", "NoText"),
    "test_lone_surrogates": ("failed", "^on ranks 0,1\n", "said \\udc80"),
    "test_long_text": ("failed", "^on ranks 0,1\n", "the end", "everyrank left out"),
    # other ways out
    "test_keyboard_interrupt": (
        "failed",
        ">           raise KeyboardInterrupt",
        "rank 0: waiting in barrier at test_inner.py",
    ),
    "test_closes_its_standard_streams": ("passed",),
    # skips: on all ranks, and on some
    "test_all_skip": ("skipped", "Skipped: not today"),
    "TestUnittest::test_skips": ("skipped", "Skipped: not in this class"),
    "test_one_skips_while_the_other_waits": ("failed", "ranks disagree", "rank 1 skipped: no room"),
    "test_a_fixture_skips_on_one_rank": ("failed", "ranks disagree", "rank 0 skipped: no data here"),
    # expected failures are as pytest has them
    "test_xfail_on_one": ("xfailed",),
    "test_xfail_at_run_time": ("xfailed",),
    "test_xpass": ("xpassed",),
    "test_strict_xpass": ("failed", "[XPASS(strict)] known"),
    "test_xfail_with_another_exception": ("failed",),
}


@pytest.mark.parametrize("test", REPORTS)
def test_what_ends_a_test_on_some_rank_is_reported(worlds: Inner, test: str) -> None:
    worlds.check(test, *REPORTS[test])


def test_the_same_exception_on_all_ranks_is_reported_once(worlds: Inner) -> None:
    text = worlds["test_all_raise_the_same"].text
    assert text.count("RuntimeError: wrong everywhere") == 1
    assert "the other ranks" not in text


def test_a_failed_call_and_a_failed_teardown_are_both_reported(worlds: Inner) -> None:
    result = worlds["test_call_and_teardown_fail"]
    assert [report["outcome"] for report in result.reports] == ["passed", "failed", "failed"]
    assert "no call on this rank" in result.reports[1]["text"]
    assert "no teardown on this rank" in result.reports[2]["text"]


@pytest.mark.skipif("sys.version_info < (3, 11)", reason="needs exception groups")
def test_an_exception_group_is_shown_whole(worlds: Inner) -> None:
    text = worlds["test_exception_group"].text
    assert "ValueError: one" in text
    assert "KeyError: 'two'" in text


def test_a_long_text_is_bounded_and_plugins_are_not_shown(worlds: Inner) -> None:
    assert len(worlds["test_long_text"].text) < 500_000
    assert "pluggy" not in worlds["test_keyboard_interrupt"].text


@pytest.mark.parametrize("test", ["test_4_mb_of_output", "test_100_mb_written_past_python"])
def test_output_is_bounded_with_start_and_end_kept(worlds: Inner, test: str) -> None:
    result = worlds[test]
    (output,) = (content for name, content in result.sections.items() if name.startswith("Captured stdout call"))
    assert output.startswith("the first line")
    assert output.rstrip().endswith("the last line")
    assert "everyrank left out" in output
    assert len(output) < 200_000


# --- runs of their own -----------------------------------------------------------------------------------


def test_ranks_that_are_parametrized_differently_are_an_error(project: Project) -> None:
    project.write("test_inner.py", DISAGREEING)
    project.forks_keeper = True
    inner = project.run("--launcher=spawn", "--fresh-worlds")
    ids, values = inner.tests.values()
    assert ids.outcome == "error"
    assert "could not run the test" in ids.text
    assert values.outcome == "error"
    assert "ranks ran different tests" in values.text


def test_pytest_exit_in_a_rank_ends_the_run(project: Project) -> None:
    project.write(
        "test_inner.py",
        """
        import pytest

        @pytest.mark.world(2)
        def test_leaves(world):
            if world.rank == 1:
                pytest.exit("enough", returncode=7)

        def test_never_reached():
            pass
        """,
    )
    inner = project.run()
    assert "rank 1: enough" in inner.out
    assert "test_never_reached" not in inner.outcomes()
    assert inner.code == 7
