"""The verdict on ranks that die or leave: it names the rank and the signal, and is never green."""

from __future__ import annotations

import re

import pytest

from tests.engines import LAUNCHERS, one_run
from tests.inner import Inner, Project

SOURCE = """
    import ctypes, os, signal, sys
    import pytest, torch
    import torch.distributed as dist
    import everyrank

    world_of_3 = pytest.mark.world(3)


    def on_rank_1(world, act):
        world.barrier()  # all have made their group
        if world.rank == 1:
            print("last words on stdout")
            print("last words on stderr", file=sys.stderr)
            act()
        dist.all_reduce(torch.ones(1))

    @world_of_3
    def test_exit_0(process_group, world):
        on_rank_1(world, lambda: os._exit(0))

    @world_of_3
    def test_sigkill(process_group, world):
        on_rank_1(world, lambda: os.kill(os.getpid(), signal.SIGKILL))

    @world_of_3
    def test_sigkill_on_all(world):
        os.kill(os.getpid(), signal.SIGKILL)

    @world_of_3
    def test_segfault(process_group, world):
        def dereference_null():
            ctypes.string_at(0)
        on_rank_1(world, dereference_null)

    @world_of_3
    def test_sigterm(process_group, world):
        on_rank_1(world, lambda: os.kill(os.getpid(), signal.SIGTERM))

    @world_of_3
    def test_dies_while_another_has_raised(world):
        if world.rank == 0:
            raise ValueError("the cause")
        with pytest.raises(AssertionError, match="ended without coming"):
            world.barrier()
        if world.rank == 1:
            os._exit(1)

    @pytest.fixture
    def dies_in_teardown(world):
        yield
        if world.rank == 1:
            os._exit(4)

    @world_of_3
    def test_dies_in_teardown(dies_in_teardown):
        pass

    @world_of_3
    def test_closes_all_descriptors(process_group, world):
        if world.rank == 1:
            os.closerange(0, 4096)
        dist.barrier()

    @world_of_3
    def test_closes_all_but_the_standard_streams(world):
        if world.rank == 1:
            os.closerange(3, 4096)

    @pytest.mark.world(1)
    @pytest.mark.xfail(reason="known")
    def test_xfail_does_not_cover_a_death(world):
        os.kill(os.getpid(), signal.SIGKILL)

    @pytest.mark.world(1)
    @pytest.mark.xfail(reason="known", raises=RuntimeError)
    def test_xfail_with_raises_does_not_cover_a_death(world):
        os.kill(os.getpid(), signal.SIGKILL)

    @pytest.mark.world(1)
    @pytest.mark.xfail(reason="dies", raises=everyrank.RankLost)
    def test_xfail_that_names_it_covers_a_death(world):
        os.kill(os.getpid(), signal.SIGKILL)

    @pytest.mark.world(1)
    @pytest.mark.xfail(reason="dies", raises=everyrank.RankLost)
    def test_an_exception_is_no_death(world):
        raise RuntimeError("alive")

    @pytest.mark.world(1)
    @pytest.mark.xfail(False, reason="not here", raises=everyrank.RankLost)
    def test_a_false_condition_expects_nothing(world):
        os._exit(1)

    @pytest.mark.world(1)
    @pytest.mark.xfail(True, reason="dies", raises=(ValueError, everyrank.RankLost))
    def test_death_or_exception(world):
        os._exit(1)

    @world_of_3
    def test_says_much_and_dies(world):
        if world.rank == 1:
            print("the first line")
            for _ in range(4):
                sys.stdout.write("x" * 1_000_000)
            print("\\nthe last line")
            os.kill(os.getpid(), signal.SIGKILL)
"""


worlds = one_run(SOURCE, "--fresh-worlds", launchers=LAUNCHERS)


FRAMES = ("Fatal Python error", "in on_rank_1")
LAST_WORDS = ("last words of rank 1", "last words on stdout", "last words on stderr")
#: test -> where its report begins, and texts that it has. Each test has failed.
DEATHS = {
    "test_exit_0": ("rank 1 of 3 left without a record (exit code 0) in call",),
    "test_sigkill": ("rank 1 of 3 was killed by SIGKILL in call", *LAST_WORDS),
    "test_sigkill_on_all": ("ranks 0-2 of 3 were killed by SIGKILL in call",),
    "test_segfault": ("rank 1 of 3 was killed by SIGSEGV in call", *FRAMES, *LAST_WORDS),
    "test_sigterm": ("rank 1 of 3 was killed by SIGTERM in call",),
    "test_dies_while_another_has_raised": (
        "rank 0 of 3 failed first, in call",
        "rank 1: left without a record (exit code 1)",
    ),
    "test_dies_in_teardown": ("rank 1 of 3 left without a record (exit code 4) in teardown",),
    "test_closes_all_descriptors": ("rank 1 of 3",),
    "test_closes_all_but_the_standard_streams": ("rank 1 of 3",),
}


@pytest.mark.parametrize("test", DEATHS)
def test_a_death_names_the_rank_and_how_it_ended(worlds: Inner, test: str) -> None:
    headline, *texts = DEATHS[test]
    worlds.check(test, "failed", f"^{headline}", *texts)


def test_many_last_words_are_bounded_with_start_and_end_kept(worlds: Inner) -> None:
    words = worlds["test_says_much_and_dies"].text.partition("last words of rank 1")[2]
    assert "the first line" in words
    assert "everyrank left out" in words
    assert "the last line" in words
    assert len(words) < 200_000


@pytest.mark.parametrize("test", ["test_exit_0", "test_sigkill", "test_segfault"])
def test_the_ranks_left_behind_are_folded(worlds: Inner, test: str) -> None:
    """When they are asked for their stacks, they still wait or have noticed it."""
    section = re.search(r"-+ the other ranks -+\n(.*?)\n--", worlds[test].text, re.DOTALL)
    assert section is not None
    left_behind = r"ranks? [02,]+: (lost the connection to a peer|waiting in all_reduce) at test_inner.py:16"
    assert [line for line in section[1].splitlines() if not re.fullmatch(left_behind, line)] == []


@pytest.mark.parametrize(
    ("test", "outcome"),
    [
        ("test_xfail_does_not_cover_a_death", "failed"),
        ("test_xfail_with_raises_does_not_cover_a_death", "failed"),
        ("test_xfail_that_names_it_covers_a_death", "xfailed"),
        ("test_an_exception_is_no_death", "failed"),
        ("test_a_false_condition_expects_nothing", "failed"),
        ("test_death_or_exception", "xfailed"),
    ],
)
def test_a_death_is_expected_only_where_the_mark_names_it(worlds: Inner, test: str, outcome: str) -> None:
    assert worlds[test].outcome == outcome


def test_a_death_after_the_last_test_of_a_warm_world_turns_the_run_red(project: Project) -> None:
    """No test can report it any more: the world was kept for a test that was then skipped."""
    project.write(
        "test_inner.py",
        """
        import os
        import pytest

        @pytest.fixture(scope="session")
        def dies_at_the_end():
            yield
            if os.environ.get("RANK") == "1":
                os._exit(3)

        @pytest.mark.world(2)
        def test_before(dies_at_the_end, world):
            pass

        @pytest.mark.world(2)
        @pytest.mark.skip(reason="not today")
        def test_skipped(dies_at_the_end, world):
            pass
        """,
    )
    inner = project.run()
    assert inner.outcomes() == {"test_before": "passed", "test_skipped": "skipped"}
    assert inner.code == 1
    (warning,) = inner.warnings
    assert "teardown failed on rank 1 when its world ended" in warning["text"]
    assert "exit code 3" in warning["text"]
